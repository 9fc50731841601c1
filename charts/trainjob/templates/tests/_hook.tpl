{{/* The annotations of what `helm test` makes; call with the hook's weight. A pod that failed stays for its log. */}}
{{- define "trainjob.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
