{{/* The name of the release's objects. */}}
{{- define "trainjob.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What objects without a namespace are called: two releases of one name in two namespaces must not meet. */}}
{{- define "trainjob.clusterName" -}}
{{- printf "%s:%s" (include "trainjob.name" .) .Release.Namespace -}}
{{- end -}}

{{/* The Secret that the controller makes for itself. */}}
{{- define "trainjob.agentKey" -}}
{{- printf "%s-agent-key" (include "trainjob.name" .) -}}
{{- end -}}

{{- define "trainjob.serviceAccount" -}}
{{- with .Values.serviceAccount -}}
{{- if not (or .create .name) -}}
{{- fail "serviceAccount.name must name an account that is there, because serviceAccount.create is false" -}}
{{- end -}}
{{- .name | default (include "trainjob.name" $) -}}
{{- end -}}
{{- end -}}

{{- define "trainjob.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What never changes in the life of a release: a Deployment's selector can't. The first is fixed, because the
     jobs' NetworkPolicies let the controller in by it. */}}
{{- define "trainjob.selector" -}}
app.kubernetes.io/name: trainjob
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "trainjob.labels" -}}
{{ include "trainjob.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}
