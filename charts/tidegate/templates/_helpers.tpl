{{- define "tidegate.labels" -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What stands after an object's labels: its annotations, where there are any. */}}
{{- define "tidegate.annotations" -}}
{{- with .Values.commonAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
{{- end }}
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

{{/* Who of cert-manager is to issue the certificates of xDS, as YAML; nothing where nobody is. */}}
{{- define "tidegate.issuer" -}}
{{- with (default dict .Values.tls.certManager).issuerRef }}{{ if .name }}{{ toYaml . }}{{ end }}{{ end -}}
{{- end }}

{{/* Name of the Secret with the certificate of `part` (xds or gateway) for xDS. Arguments: root, part. */}}
{{- define "tidegate.xdsSecret" -}}
{{- $end := ternary "cert" "tls" (not (empty (include "tidegate.issuer" .root))) -}}
{{- $made := dict "xds" (printf "xds-%s" $end) "gateway" (printf "gateway-xds-%s" $end) -}}
{{- get (default dict .root.Values.tls.existing) .part | default (printf "%s-%s" .root.Release.Name (get $made .part)) -}}
{{- end }}

{{- define "tidegate.scrape" -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
prometheus.io/path: {{ .path }}
{{- end }}

{{/* Annotations of a process's pods besides those of its own. Arguments: root, values. */}}
{{- define "tidegate.podAnnotations" -}}
{{- $common := default dict .root.Values.commonAnnotations -}}
{{- with merge (dict) (include "tidegate.pods" (dict "root" .root "values" .values "key" "annotations") | fromYaml) $common }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* What `pods` says of one key for a process, or the process's own `pods`, as YAML; nothing where it is empty. Arguments: root, values, key. */}}
{{- define "tidegate.pods" -}}
{{- $own := default dict .values.pods -}}
{{- with ternary (get $own .key) (get (default dict .root.Values.pods) .key) (hasKey $own .key) -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toYaml . }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Where the pods of a process may run, and what comes before what. Arguments: root, component, values. */}}
{{- define "tidegate.scheduling" -}}
priorityClassName: {{ include "tidegate.pods" (dict "root" .root "values" .values "key" "priorityClassName") | default (printf "%s-control-plane" .root.Release.Name) }}
{{- $own := default dict .values.pods -}}
{{- $all := default dict .root.Values.pods -}}
{{- $root := .root -}}
{{- $component := .component -}}
{{- $values := .values -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with include "tidegate.pods" (dict "root" $root "values" $values "key" $key) }}
{{ $key }}:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}
{{- with ternary $own.topologySpreadConstraints $all.topologySpreadConstraints (hasKey $own "topologySpreadConstraints") }}
topologySpreadConstraints:
{{- range . }}
- {{- if not .labelSelector }}
  labelSelector:
    matchLabels: {{- include "tidegate.selector" (dict "root" $root "component" $component) | nindent 6 }}
  {{- end }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels of a process's pods. Arguments: root, component, values. */}}
{{- define "tidegate.podLabels" -}}
{{ include "tidegate.labels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- with include "tidegate.pods" (dict "root" .root "values" .values "key" "labels") }}
{{ . }}
{{- end }}
{{- end }}

{{/*
The PodDisruptionBudget of a process; none where its values name no bound. Values of an earlier release, kept by --reuse-values, say
nothing of it: it is then as it was. Arguments: root, component, values.
*/}}
{{- define "tidegate.budget" -}}
{{- with ternary .values.podDisruptionBudget (dict "maxUnavailable" 1) (hasKey .values "podDisruptionBudget") }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $.root.Release.Name }}-{{ $.component }}
  namespace: {{ $.root.Release.Namespace }}
  labels: {{- include "tidegate.labels" $.root | nindent 4 }}{{ include "tidegate.annotations" $.root }}
spec:
  {{- toYaml . | nindent 2 }}
  # A pod that is broken anyway must not keep a node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "tidegate.selector" (dict "root" $.root "component" $.component) | nindent 6 }}
{{- end }}
{{- end }}

{{/* A Service without an address of its own, by which the pods of a process are found. Arguments: root, component, name, ports. */}}
{{- define "tidegate.headless" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tidegate.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
  {{- include "tidegate.annotations" .root }}
spec:
  clusterIP: None
  selector: {{- include "tidegate.selector" . | nindent 4 }}
  ports: {{- toYaml .ports | nindent 2 }}
{{- end }}

{{/* Environment shared by the three processes of the operator image; settings.py names each variable. */}}
{{- define "tidegate.env" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: TIDEGATE_RELEASE, value: {{ .Release.Name | quote }}}
- {name: TIDEGATE_WATCH_NAMESPACES, value: {{ toJson (default list .Values.watchNamespaces) | quote }}}
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
  {{- include "tidegate.annotations" .root }}
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
      labels: {{- include "tidegate.podLabels" . | nindent 8 }}
      annotations:
        {{- include "tidegate.scrape" (dict "port" 8081 "path" "/metrics") | nindent 8 }}
        {{- with include "tidegate.podAnnotations" . }}
        {{- . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ .root.Release.Name }}-{{ .component }}
      enableServiceLinks: false
      {{- with .root.Values.images.pullSecrets }}
      imagePullSecrets: {{ toYaml . | nindent 8 }}
      {{- end }}
      {{- include "tidegate.scheduling" . | nindent 6 }}
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
{{ include "tidegate.budget" . }}
{{- end }}
