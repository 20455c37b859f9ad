{{/*
Puts in what values lack. `helm upgrade --reuse-values` brings the values along that the last chart had, which know nothing of what
came since; each template begins with this. What somebody took away from a map on purpose stays away: in `open` are the maps that may
lack a key. Kinds that an earlier release did not bring are not its own.
*/}}
{{- define "tidegate.complete" -}}
{{- $defaults := omit (.Files.Get "files/values.yaml" | fromYaml) "crds" -}}
{{- include "tidegate.fill" (dict "into" .Values "from" $defaults) -}}
{{- end }}

{{- define "tidegate.fill" -}}
{{- $open := list "podDisruptionBudget" "resources" "nodeSelector" "securityContext" "containerSecurityContext" -}}
{{- range $key, $default := .from -}}
{{- $given := get $.into $key -}}
{{- if or (not (hasKey $.into $key)) (kindIs "invalid" $given) -}}
{{- $_ := set $.into $key $default -}}
{{- else if and (kindIs "map" $default) (kindIs "map" $given) (not (has $key $open)) -}}
{{- include "tidegate.fill" (dict "into" $given "from" $default) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
Labels of an object: the chart's own, those for all, and further ones, of which the first wins where keys are the same. Those by which
things are found cannot be given (values.schema.json). Arguments: root, more.
*/}}
{{- define "tidegate.labelsWith" -}}
{{- $labels := dict -}}
{{- range append .more .root.Values.commonLabels -}}
{{- $labels = merge $labels (default dict .) -}}
{{- end -}}
{{- $own := dict
  "app.kubernetes.io/name" "tidegate"
  "app.kubernetes.io/instance" (include "tidegate.fullname" .root)
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) -}}
{{- merge $labels $own | toYaml -}}
{{- end }}

{{- define "tidegate.labels" -}}
{{- include "tidegate.labelsWith" (dict "root" . "more" list) -}}
{{- end }}

{{/* What stands after an object's labels: its annotations, where there are any. */}}
{{- define "tidegate.annotations" -}}
{{- include "tidegate.annotationsWith" (dict "root" . "more" dict) -}}
{{- end }}

{{/* The same with further annotations, which take precedence. Arguments: root, more. */}}
{{- define "tidegate.annotationsWith" -}}
{{- with merge dict .more .root.Values.commonAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{- define "tidegate.selector" -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ include "tidegate.fullname" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/*
Prefix of all names, and the instance label. The longest name of a Service, <prefix>-gateway-metrics, has to fit into 63 characters.
*/}}
{{- define "tidegate.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 47 | trimSuffix "-" -}}
{{- end }}

{{/* Reference of an image. Arguments: root, image: operator, dataplane, triton or gateway. */}}
{{- define "tidegate.image" -}}
{{- $image := get .root.Values.images .image -}}
{{- if kindIs "string" $image -}}
{{- $image -}}
{{- else -}}
{{- $name := list .root.Values.images.registry $image.repository | compact | join "/" -}}
{{- $name -}}{{- with $image.tag | default (ternary "" .root.Chart.AppVersion (not (empty $image.digest))) }}:{{ . }}{{ end -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end }}

{{/* A key of `pods` in a pod or a container, as YAML; nothing if it is empty. Arguments: root, values, from: key of pods, key. */}}
{{- define "tidegate.podField" -}}
{{- with include "tidegate.pods" (dict "root" .root "values" .values "key" .from) -}}
{{ $.key }}:
  {{- . | nindent 2 }}
{{- end -}}
{{- end }}

{{/* Environment of a process, with `pods.extraEnv`, as YAML. Arguments: root, values, own: what the chart sets. */}}
{{- define "tidegate.environment" -}}
{{- $names := dict -}}
{{- range .own }}{{ $_ := set $names .name true }}{{ end -}}
{{- $extra := include "tidegate.pods" (dict "root" .root "values" .values "key" "extraEnv") | fromYamlArray -}}
{{- range $extra -}}
{{- if hasKey $names .name }}{{ fail (printf "extraEnv: the chart itself sets %s; use the value for it" .name) }}{{ end -}}
{{- end -}}
{{- concat .own $extra | toYaml -}}
{{- end }}

{{/* A list of a pod with the items of `pods`, as YAML. Arguments: root, values, key: of pods, own: what the chart sets. */}}
{{- define "tidegate.podItems" -}}
{{- concat .own (include "tidegate.pods" . | fromYamlArray) | toYaml -}}
{{- end }}

{{/* A ServiceAccount, and its annotations besides those for all. Arguments: root, component, values, token: whether pods mount one. */}}
{{- define "tidegate.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "tidegate.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "tidegate.labels" .root | nindent 4 }}
  {{- include "tidegate.annotationsWith" (dict "root" .root "more" .values.serviceAccount.annotations) }}
{{- if not .token }}
automountServiceAccountToken: false
{{- end }}
{{- end }}

{{/* What values say of a Service, in its spec. */}}
{{- define "tidegate.service" -}}
type: {{ .type }}
{{- with .loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- with .loadBalancerSourceRanges }}
loadBalancerSourceRanges: {{ toJson . }}
{{- end }}
{{- with .externalTrafficPolicy }}
externalTrafficPolicy: {{ . }}
{{- end }}
{{- with .ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* URL of the Prometheus of a process: its own, or that of all. Arguments: root, component. */}}
{{- define "tidegate.prometheus" -}}
{{- (get .root.Values .component).prometheusUrl | default .root.Values.prometheus.url -}}
{{- end }}

{{/* Who of cert-manager is to issue the certificates of xDS servers and gateways, as YAML; nothing where nobody is. */}}
{{- define "tidegate.issuer" -}}
{{- with .Values.tls.certManager.issuerRef }}{{ if .name }}{{ toYaml . }}{{ end }}{{ end -}}
{{- end }}

{{/* Name of the Secret with the certificate of `part` (controllers, xds or gateway). Arguments: root, part. */}}
{{- define "tidegate.certificateSecret" -}}
{{- $own := printf "%s-certificate" .part -}}
{{- $issued := dict "xds" "xds-cert" "gateway" "gateway-xds-cert" -}}
{{- $made := ternary (get $issued .part) $own (and (hasKey $issued .part) (not (empty (include "tidegate.issuer" .root)))) -}}
{{- get .root.Values.tls.existing .part | default (printf "%s-%s" (include "tidegate.fullname" .root) $made) -}}
{{- end }}

{{/* Parts whose certificates the controllers make themselves, as a list in JSON. */}}
{{- define "tidegate.ownCertificates" -}}
{{- $parts := list -}}
{{- $others := not (empty (include "tidegate.issuer" .)) -}}
{{- $existing := .Values.tls.existing -}}
{{- range $part := ternary (list "controllers" "xds" "gateway") (list "controllers") (and .Values.tls.xds (not $others)) -}}
{{- if not (get $existing $part) -}}{{- $parts = append $parts $part -}}{{- end -}}
{{- end -}}
{{- toJson $parts -}}
{{- end }}

{{/* A volume with the certificate of `part`. A pod waits for its files until they are there. Arguments: root, name, part. */}}
{{- define "tidegate.certificateVolume" -}}
name: {{ .name }}
secret:
  secretName: {{ include "tidegate.certificateSecret" . }}
  defaultMode: 288
  items: [{key: ca.crt, path: ca.crt}, {key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- end }}

{{/*
Annotations by which a Prometheus without monitors finds a process; none where a monitor finds it, which would count it twice.
Arguments: root, component, port, path.
*/}}
{{- define "tidegate.scrape" -}}
{{- $metrics := .root.Values.metrics -}}
{{- if not (or $metrics.podMonitor.enabled (and $metrics.serviceMonitor.enabled (ne .component "node-agent"))) -}}
{{- dict "prometheus.io/scrape" "true" "prometheus.io/port" (toString .port) "prometheus.io/path" .path | toYaml -}}
{{- end -}}
{{- end }}

{{/*
Annotations of a process's pods, as a key of their metadata; nothing where there are none. Of the same keys the process's own come
first, then those for all. Arguments: root, component, values, port and path of its metrics if any, fixed: what cannot be given.
*/}}
{{- define "tidegate.podAnnotations" -}}
{{- $own := include "tidegate.pods" (dict "root" .root "values" .values "key" "annotations") | fromYaml -}}
{{- $scrape := dict -}}
{{- if .port -}}
{{- $scrape = include "tidegate.scrape" . | fromYaml -}}
{{- end -}}
{{- with merge dict (default dict .fixed) $own .root.Values.commonAnnotations $scrape -}}
annotations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end }}

{{/* What `pods` says of one key for a process, or the process's own `pods`, as YAML; nothing where it is empty. Arguments: root, values, key. */}}
{{- define "tidegate.pods" -}}
{{- $own := default dict .values.pods -}}
{{- with ternary (get $own .key) (get .root.Values.pods .key) (hasKey $own .key) -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toYaml . }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Where the pods of a process may run, and what comes before what. Arguments: root, component, values. */}}
{{- define "tidegate.scheduling" -}}
priorityClassName: {{ include "tidegate.pods" (dict "root" .root "values" .values "key" "priorityClassName") | default (printf "%s-control-plane" (include "tidegate.fullname" .root)) }}
{{- $own := default dict .values.pods -}}
{{- $all := .root.Values.pods -}}
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
{{- $own := include "tidegate.pods" (dict "root" .root "values" .values "key" "labels") | fromYaml -}}
{{- include "tidegate.labelsWith" (dict "root" .root "more" (list (dict "app.kubernetes.io/component" .component) $own)) -}}
{{- end }}

{{/* The PodDisruptionBudget of a process; none where its values name no bound. Arguments: root, component, values. */}}
{{- define "tidegate.budget" -}}
{{- with .values.podDisruptionBudget }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "tidegate.fullname" $.root }}-{{ $.component }}
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
  name: {{ include "tidegate.fullname" .root }}-{{ .name }}
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
- {name: TIDEGATE_RELEASE, value: {{ include "tidegate.fullname" . | quote }}}
- {name: TIDEGATE_WATCH_NAMESPACES, value: {{ toJson .Values.watchNamespaces | quote }}}
- {name: TIDEGATE_LOG_LEVEL, value: {{ .Values.log.level | quote }}}
- {name: TIDEGATE_LOG_FORMAT, value: {{ .Values.log.format | quote }}}
{{- with (include "tidegate.otlp" . | fromYaml) }}
- {name: TIDEGATE_OTLP_ENDPOINT, value: {{ .endpoint | quote }}}
- {name: TIDEGATE_OTLP_SAMPLING_PERCENT, value: {{ toString .samplingPercent | quote }}}
{{- if .caConfigMap }}
- {name: TIDEGATE_OTLP_AUTHORITIES, value: /etc/tidegate-collector-ca/ca.crt}
{{- end }}
{{- if .authorizationSecret }}
- {name: TIDEGATE_OTLP_AUTHORIZATION_FILE, value: /etc/tidegate-collector/authorization}
{{- end }}
{{- end }}
{{- end }}

{{/* What telemetry.otlp says, as YAML with url (host, port, tls); nothing without a receiver. */}}
{{- define "tidegate.otlp" -}}
{{- $otlp := default dict (default dict .Values.telemetry).otlp -}}
{{- with $otlp.endpoint -}}
{{- $url := urlParse . -}}
{{- $tls := eq $url.scheme "https" -}}
{{- if and $tls (not $otlp.caConfigMap) }}{{ fail "telemetry.otlp.endpoint is https: set telemetry.otlp.caConfigMap to a ConfigMap whose ca.crt verifies its certificate" }}{{ end -}}
{{- if and $otlp.authorizationSecret (not $tls) }}{{ fail "telemetry.otlp.authorizationSecret would be sent in plain text: use an https URL in telemetry.otlp.endpoint" }}{{ end -}}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) -}}
{{- toYaml (dict "endpoint" . "tls" $tls "host" (regexReplaceAll ":[0-9]+$" $url.host "") "port" ($port | default (ternary "443" "80" $tls) | int)
  "samplingPercent" (ternary $otlp.samplingPercent 1 (hasKey $otlp "samplingPercent")) "caConfigMap" (ternary $otlp.caConfigMap "" $tls) "authorizationSecret" (default "" $otlp.authorizationSecret)) -}}
{{- end -}}
{{- end }}

{{/* Files by which the receiver of spans is known, and ours to it: mounts, and volumes, as one YAML. */}}
{{- define "tidegate.otlpFiles" -}}
{{- $mounts := list -}}
{{- $volumes := list -}}
{{- with (include "tidegate.otlp" . | fromYaml) -}}
{{- if .caConfigMap -}}
{{- $mounts = append $mounts (dict "name" "collector-ca" "mountPath" "/etc/tidegate-collector-ca" "readOnly" true) -}}
{{- $volumes = append $volumes (dict "name" "collector-ca" "configMap" (dict "name" .caConfigMap)) -}}
{{- end -}}
{{- if .authorizationSecret -}}
{{- $mounts = append $mounts (dict "name" "collector" "mountPath" "/etc/tidegate-collector" "readOnly" true) -}}
{{- $volumes = append $volumes (dict "name" "collector" "secret" (dict "secretName" .authorizationSecret "defaultMode" 288)) -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "mounts" $mounts "volumes" $volumes) -}}
{{- end }}

{{/* The cluster that gateways send spans to, as JSON for Envoy's --config-yaml; nothing without a receiver. */}}
{{- define "tidegate.collector" -}}
{{- $root := . -}}
{{- with (include "tidegate.otlp" . | fromYaml) -}}
{{- $file := $root.Files.Get "files/envoy-collector.yaml" | replace "4318" (toString .port) | replace "collector.invalid" .host | fromYaml -}}
{{- $cluster := first $file.static_resources.clusters -}}
{{- if not .tls }}{{ $_ := unset $cluster "transport_socket" }}{{ end -}}
{{- if not .authorizationSecret }}{{ $_ := unset $cluster "typed_extension_protocol_options" }}{{ $_ := unset $file.static_resources "secrets" }}{{ end -}}
{{- toJson $file -}}
{{- end -}}
{{- end }}

{{/* One Deployment of the operator image. Arguments: root, component, values, ports, env, volumes, mounts. */}}
{{- define "tidegate.process" -}}
{{- $collector := include "tidegate.otlpFiles" .root | fromYaml -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "tidegate.fullname" .root }}-{{ .component }}
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
      {{- include "tidegate.podAnnotations" (merge (dict "port" 8081 "path" "/metrics") .) | nindent 6 }}
    spec:
      serviceAccountName: {{ include "tidegate.fullname" .root }}-{{ .component }}
      enableServiceLinks: false
      {{- with .root.Values.images.pullSecrets }}
      imagePullSecrets: {{ toYaml . | nindent 8 }}
      {{- end }}
      {{- include "tidegate.scheduling" . | nindent 6 }}
      {{- include "tidegate.podField" (merge (dict "from" "securityContext" "key" "securityContext") .) | nindent 6 }}
      containers:
      - name: {{ .component }}
        image: {{ include "tidegate.image" (dict "root" .root "image" "operator") }}
        imagePullPolicy: {{ .root.Values.images.pullPolicy }}
        command: [python3, -m, tidegate, {{ .component }}{{ if eq .component "xds" }}, serve{{ end }}]
        env:
          {{- $own := concat (include "tidegate.env" .root | fromYamlArray) (default list .env) }}
          {{- include "tidegate.environment" (merge (dict "own" $own) .) | nindent 10 }}
        ports:
        - {name: probes, containerPort: 8081}
        {{- with .ports }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        startupProbe: {httpGet: {path: /healthz, port: probes}, periodSeconds: 1, failureThreshold: 60}
        livenessProbe: {httpGet: {path: /healthz, port: probes}, periodSeconds: 10, timeoutSeconds: 3, failureThreshold: 6}
        readinessProbe: {httpGet: {path: /readyz, port: probes}, periodSeconds: 2, timeoutSeconds: 2}
        resources: {{- toYaml .values.resources | nindent 10 }}
        {{- include "tidegate.podField" (merge (dict "from" "containerSecurityContext" "key" "securityContext") .) | nindent 8 }}
        volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- with include "tidegate.podItems" (merge (dict "key" "volumeMounts" "own" (concat (default list .mounts) $collector.mounts)) .) | fromYamlArray }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes:
      - {name: tmp, emptyDir: {sizeLimit: 64Mi}}
      {{- with include "tidegate.podItems" (merge (dict "key" "volumes" "own" (concat (default list .volumes) $collector.volumes)) .) | fromYamlArray }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{ include "tidegate.budget" . }}
{{- end }}

{{/* Which namespaces the release serves, as a selector. */}}
{{- define "tidegate.servedNamespaces" -}}
{{- with .Values.watchNamespaces -}}
{{- dict "matchExpressions" (list (dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" .)) | toJson -}}
{{- else -}}
{}
{{- end -}}
{{- end }}

{{/* Who may write labels of ours, as a list in CEL. */}}
{{- define "tidegate.labelWriters" -}}
{{- $controllers := printf "system:serviceaccount:%s:%s-controllers" .Release.Namespace .Release.Name -}}
{{- prepend .Values.labelBounds.writers $controllers | toJson -}}
{{- end }}

{{/* Folders of nodes that pods of models may have, as a list in CEL. */}}
{{- define "tidegate.hostPaths" -}}
{{- list .Values.models.hostPath .Values.models.nodeCache.hostPath | compact | toJson -}}
{{- end }}
