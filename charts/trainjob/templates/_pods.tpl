{{/* What every pod of this chart has in common; `restricted` Pod Security asks for it. */}}
{{- define "trainjob.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "trainjob.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end -}}

{{/* Where pods of this chart may run, and with which images. */}}
{{- define "trainjob.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* A container of a short-lived pod: call with a dict of root, name and args of `python -m trainjob.installation`. */}}
{{- define "trainjob.installationContainer" -}}
name: {{ .name }}
image: {{ include "trainjob.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [python, -m, trainjob.installation]
args: {{- toYaml .args | nindent 0 }}
resources:
  requests: {cpu: 50m, memory: 64Mi}
  limits: {memory: 256Mi}
securityContext: {{- include "trainjob.containerSecurity" .root | nindent 2 }}
{{- end -}}
