{{/*
The name of the chart. It is fixed: the jobs' NetworkPolicies let the controller's pods in by this label.
*/}}
{{- define "trainjob.name" -}}
trainjob
{{- end }}

{{/*
The name of the release's objects. 53 characters leave room for suffixes such as -agent-key.
*/}}
{{- define "trainjob.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/*
The name of cluster-wide objects. Releases of one name in two namespaces have different ones.
*/}}
{{- define "trainjob.clusterFullname" -}}
{{- printf "%s:%s" (include "trainjob.fullname" .) .Release.Namespace }}
{{- end }}

{{/*
The name of the Secret that the controller creates for itself.
*/}}
{{- define "trainjob.agentKeyName" -}}
{{- printf "%s-agent-key" (include "trainjob.fullname" .) }}
{{- end }}

{{/*
The name and version of the chart, for the label.
*/}}
{{- define "trainjob.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/*
Common labels.
*/}}
{{- define "trainjob.labels" -}}
{{ include "trainjob.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ include "trainjob.chart" . }}
{{- end }}

{{/*
Selector labels. They must not change in the life of a release: the selector of a Deployment is immutable.
*/}}
{{- define "trainjob.selectorLabels" -}}
app.kubernetes.io/name: {{ include "trainjob.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/*
The name of the controller's service account.
*/}}
{{- define "trainjob.serviceAccountName" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
{{- fail "serviceAccount.name must name an account that is there, because serviceAccount.create is false" }}
{{- end }}
{{- default (include "trainjob.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{/*
Not empty if jobs may wait in queues of Kueue.
*/}}
{{- define "trainjob.kueue" -}}
{{- $apis := .Capabilities.APIVersions }}
{{- $served := or ($apis.Has "kueue.x-k8s.io/v1beta2") ($apis.Has "kueue.x-k8s.io/v1beta1") }}
{{- if ternary $served .Values.kueue.enabled (eq (toString .Values.kueue.enabled) "auto") }}true{{ end }}
{{- end }}

{{/*
Not empty if jobs may have PodGroups.
*/}}
{{- define "trainjob.gangs" -}}
{{- $apis := .Capabilities.APIVersions }}
{{- $served := or ($apis.Has "scheduling.k8s.io/v1beta1/PodGroup") ($apis.Has "scheduling.x-k8s.io/v1alpha1/PodGroup") ($apis.Has "scheduling.volcano.sh/v1beta1/PodGroup") }}
{{- if ternary $served .Values.gangs.enabled (eq (toString .Values.gangs.enabled) "auto") }}true{{ end }}
{{- end }}

{{/*
Not empty if a policy narrows what the controller's account may do.
*/}}
{{- define "trainjob.admissionPolicy" -}}
{{- $served := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" }}
{{- $auto := and $served (not .Values.watch.namespace) }}
{{- if ternary $auto .Values.admissionPolicy.enabled (eq (toString .Values.admissionPolicy.enabled) "auto") }}true{{ end }}
{{- end }}

{{/*
The image with its digest, or else its tag. A published chart names the image that was tested with it.
*/}}
{{- define "trainjob.image" -}}
{{- $tested := index (.Chart.Annotations | default dict) "trainjob.dev/operator" | default "" }}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else if and (not .tag) (hasPrefix (printf "%s@" .repository) $tested) }}
{{- $tested }}
{{- else }}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The security context of every pod of the chart. The Pod Security level `restricted` requires it.
*/}}
{{- define "trainjob.podSecurityContext" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/*
The security context of every container of the chart.
*/}}
{{- define "trainjob.securityContext" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{/*
Pull secrets, node selector and tolerations of every pod of the chart.
*/}}
{{- define "trainjob.scheduling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/*
The annotations of a hook. Call it with a list of the events and the weight. The pod of a failed hook stays for
its log; the hook's account is deleted before the next run.
*/}}
{{- define "trainjob.hookAnnotations" -}}
helm.sh/hook: {{ index . 0 }}
helm.sh/hook-weight: {{ index . 1 | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/*
The container of a hook. Call it with a dict of root, name, and args of `python -m trainjob.installation`.
*/}}
{{- define "trainjob.hookContainer" -}}
name: {{ .name }}
image: {{ include "trainjob.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [python, -m, trainjob.installation]
args: {{- toYaml .args | nindent 0 }}
resources:
  requests: {cpu: 50m, memory: 64Mi}
  limits: {memory: 256Mi}
securityContext: {{- include "trainjob.securityContext" .root | nindent 2 }}
{{- end }}
