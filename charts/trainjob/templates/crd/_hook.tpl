{{/* The annotations of what updates the CRD; call with the hook's weight. A failed Job stays to be looked at,
     its account is deleted before the next attempt. */}}
{{- define "trainjob.crdHook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
