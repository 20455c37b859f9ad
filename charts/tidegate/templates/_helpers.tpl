{{- define "tidegate.labels" -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tidegate.selector" -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tidegate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tidegate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Name of the Secret with the certificate of `part` (xds or gateway) for xDS. Arguments: root, part. */}}
{{- define "tidegate.xdsSecret" -}}
{{- $made := dict "xds" "xds-tls" "gateway" "gateway-xds-tls" -}}
{{- get (default dict .root.Values.tls.existing) .part | default (printf "%s-%s" .root.Release.Name (get $made .part)) -}}
{{- end }}

{{- define "tidegate.scrape" -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
prometheus.io/path: {{ .path }}
{{- end }}

{{/* Environment shared by the three processes of the operator image; settings.py names each variable. */}}
{{- define "tidegate.env" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: TIDEGATE_RELEASE, value: {{ .Release.Name | quote }}}
- {name: TIDEGATE_LOG_LEVEL, value: {{ .Values.log.level | quote }}}
- {name: TIDEGATE_LOG_FORMAT, value: {{ .Values.log.format | quote }}}
{{- end }}

{{/* One Deployment of the operator image. Arguments: root, component, values, ports, env, volumes, mounts. */}}
{{- define "tidegate.process" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .root.Release.Name }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tidegate.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  replicas: {{ .values.replicas }}
  revisionHistoryLimit: 3
  selector:
    matchLabels:
      {{- include "tidegate.selector" . | nindent 6 }}
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  template:
    metadata:
      labels:
        {{- include "tidegate.labels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
      annotations:
        {{- include "tidegate.scrape" (dict "port" 8081 "path" "/metrics") | nindent 8 }}
        {{- with .checksum }}
        tidegate.io/config: {{ . }}
        {{- end }}
    spec:
      serviceAccountName: {{ .root.Release.Name }}-{{ .component }}
      enableServiceLinks: false
      {{- with .root.Values.images.pullSecrets }}
      imagePullSecrets: {{ toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {{- include "tidegate.podSecurity" .root | nindent 8 }}
      containers:
      - name: {{ .component }}
        image: {{ .root.Values.images.operator }}
        imagePullPolicy: {{ .root.Values.images.pullPolicy }}
        command: [python3, -m, tidegate, {{ .component }}]
        env:
          {{- include "tidegate.env" .root | nindent 10 }}
          {{- with .env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        ports:
        - {name: probes, containerPort: 8081}
        {{- with .ports }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        startupProbe: {httpGet: {path: /healthz, port: probes}, periodSeconds: 1, failureThreshold: 60}
        livenessProbe: {httpGet: {path: /healthz, port: probes}, periodSeconds: 10, timeoutSeconds: 3, failureThreshold: 6}
        readinessProbe: {httpGet: {path: /readyz, port: probes}, periodSeconds: 2, timeoutSeconds: 2}
        resources: {{- toYaml .values.resources | nindent 10 }}
        securityContext: {{- include "tidegate.containerSecurity" .root | nindent 10 }}
        volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- with .mounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes:
      - {name: tmp, emptyDir: {sizeLimit: 64Mi}}
      {{- with .volumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end }}
