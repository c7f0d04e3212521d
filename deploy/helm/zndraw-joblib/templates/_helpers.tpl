{{/* The labels by which objects of this release are selected; they never change. */}}
{{- define "joblib.selector" -}}
app: {{ . }}
{{- end }}

{{- define "joblib.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels that tools show. */}}
{{- define "joblib.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The Secret of the servers: that of the values, or the one that the chart makes. */}}
{{- define "joblib.serverSecret" -}}
{{- if .Values.server.existingSecret -}}
{{ .Values.server.existingSecret }}
{{- else if .Values.server.secret -}}
{{ .Release.Name }}-server
{{- else -}}
{{- fail "set server.existingSecret to a Secret with ZNDRAW_JOBLIB_DATABASE_URL and ZNDRAW_JOBLIB_ADMIN_TOKEN" -}}
{{- end -}}
{{- end }}

{{- define "joblib.podSecurity" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Where a Pod may run. Called with the values of a server or a worker. */}}
{{- define "joblib.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
