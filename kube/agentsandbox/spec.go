package agentsandbox

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// modeRunning is an operating mode. Agent-sandbox and forkd.dev have the same modes.
const modeRunning = string(v1alpha1.ModeRunning)

// Shutdown policies.
const (
	policyDelete     = "Delete"
	policyForeground = "DeleteForeground"
)

// blueprint has the fields that a Sandbox and a SandboxTemplate share.
type blueprint struct {
	PodTemplate          podTemplate `json:"podTemplate"`
	VolumeClaimTemplates []any       `json:"volumeClaimTemplates,omitempty"`
	Service              *bool       `json:"service,omitempty"`
}

type podTemplate struct {
	Metadata podMetadata `json:"metadata,omitempty"`
	Spec     podSpec     `json:"spec"`
}

type podMetadata struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// podSpec has the fields of a pod that are accepted. All other fields are refused.
type podSpec struct {
	Containers   []container       `json:"containers"`
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	AutomountServiceAccountToken *bool `json:"automountServiceAccountToken,omitempty"` // only false

	// Without effect: see replaced.
	RestartPolicy                 any `json:"restartPolicy,omitempty"`
	RuntimeClassName              any `json:"runtimeClassName,omitempty"`
	EnableServiceLinks            any `json:"enableServiceLinks,omitempty"`
	ImagePullSecrets              any `json:"imagePullSecrets,omitempty"`
	TerminationGracePeriodSeconds any `json:"terminationGracePeriodSeconds,omitempty"`
}

type container struct {
	Name string   `json:"name"`
	Env  []envVar `json:"env,omitempty"`

	// Without effect: see replaced.
	Image           any `json:"image,omitempty"`
	ImagePullPolicy any `json:"imagePullPolicy,omitempty"`
	Ports           any `json:"ports,omitempty"`
	ReadinessProbe  any `json:"readinessProbe,omitempty"`
	LivenessProbe   any `json:"livenessProbe,omitempty"`
	StartupProbe    any `json:"startupProbe,omitempty"`
	Resources       any `json:"resources,omitempty"`
}

type envVar struct {
	Name          string `json:"name"`
	Value         string `json:"value,omitempty"`
	ContainerName string `json:"containerName,omitempty"` // only in a SandboxClaim
}

type sandboxSpec struct {
	blueprint      `json:",inline"`
	ShutdownTime   *metav1.Time `json:"shutdownTime,omitempty"`
	ShutdownPolicy string       `json:"shutdownPolicy,omitempty"`
	OperatingMode  string       `json:"operatingMode,omitempty"`
}

type templateSpec struct {
	blueprint                  `json:",inline"`
	NetworkPolicy              map[string]any `json:"networkPolicy,omitempty"`
	NetworkPolicyManagement    string         `json:"networkPolicyManagement,omitempty"`
	EnvVarsInjectionPolicy     string         `json:"envVarsInjectionPolicy,omitempty"`
	VolumeClaimTemplatesPolicy string         `json:"volumeClaimTemplatesPolicy,omitempty"`
}

type poolSpec struct {
	Replicas           *int32         `json:"replicas,omitempty"`
	SandboxTemplateRef reference      `json:"sandboxTemplateRef"`
	UpdateStrategy     map[string]any `json:"updateStrategy,omitempty"`
}

type reference struct {
	Name string `json:"name"`
}

type claimSpec struct {
	WarmPoolRef           reference   `json:"warmPoolRef"`
	Lifecycle             lifecycle   `json:"lifecycle,omitempty"`
	AdditionalPodMetadata podMetadata `json:"additionalPodMetadata,omitempty"`
	Env                   []envVar    `json:"env,omitempty"`
	VolumeClaimTemplates  []any       `json:"volumeClaimTemplates,omitempty"`
}

type lifecycle struct {
	ShutdownTime   *metav1.Time `json:"shutdownTime,omitempty"`
	ShutdownPolicy string       `json:"shutdownPolicy,omitempty"`
}

// parse decodes the spec of an object. Unknown fields are an error that names them.
func parse(o *unstructured.Unstructured, into any) error {
	spec, ok := o.Object["spec"].(map[string]any)
	if !ok {
		return wrong(reasonInvalid, "spec is missing")
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(spec, into, true)
	if err != nil {
		return wrong(reasonInvalid, "spec of the %s %s: %v: a sandbox of forkd cannot honour unknown fields; remove them",
			o.GetKind(), o.GetName(), strings.TrimPrefix(err.Error(), "strict decoding error: "))
	}
	return nil
}

// check returns the Snapshot and the network mode that annotations name. The second is empty
// if the policy of the snapshot applies.
func check(o *unstructured.Unstructured) (snapshot, network string, err error) {
	notes := o.GetAnnotations()
	snapshot, network = notes[SnapshotAnnotation], notes[NetworkAnnotation]
	if snapshot == "" {
		return "", "", wrong(reasonInvalid, "the %s %s has no annotation %s: set it to the name of a Snapshot (forkd.dev) "+
			"in this namespace; forkd runs that snapshot instead of the image", o.GetKind(), o.GetName(), SnapshotAnnotation)
	}
	if network != "" && network != "none" && network != "public" {
		return "", "", wrong(reasonInvalid, "annotation %s of the %s %s is %q: want none or public", NetworkAnnotation,
			o.GetKind(), o.GetName(), network)
	}
	return snapshot, network, nil
}

// check refuses what a sandbox of forkd cannot honour.
func (b *blueprint) check() error {
	pod := &b.PodTemplate.Spec
	var all []error
	no := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	no(len(b.VolumeClaimTemplates) > 0, "volumeClaimTemplates: a sandbox has no volumes; the snapshot has its disk")
	no(b.Service != nil && *b.Service, "service: a sandbox has no address in the cluster's network")
	no(len(pod.Containers) != 1, "podTemplate.spec.containers has %d entries: want one", len(pod.Containers))
	no(pod.AutomountServiceAccountToken != nil && *pod.AutomountServiceAccountToken,
		"podTemplate.spec.automountServiceAccountToken: a sandbox gets no token; set it to false")
	for _, c := range pod.Containers {
		for _, e := range c.Env {
			no(e.ContainerName != "", "podTemplate.spec.containers: unknown field containerName of the variable %s", e.Name)
		}
	}
	if err := errors.Join(all...); err != nil {
		return wrong(reasonInvalid, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// replaced lists the fields that have no effect, because the snapshot decides what they say.
func (b *blueprint) replaced() (list []string) {
	add := func(name string, value any) {
		if value != nil {
			list = append(list, name)
		}
	}
	pod := &b.PodTemplate.Spec
	add("restartPolicy", pod.RestartPolicy)
	add("runtimeClassName", pod.RuntimeClassName)
	add("enableServiceLinks", pod.EnableServiceLinks)
	add("imagePullSecrets", pod.ImagePullSecrets)
	add("terminationGracePeriodSeconds", pod.TerminationGracePeriodSeconds)
	for _, c := range pod.Containers {
		add("image", c.Image)
		add("imagePullPolicy", c.ImagePullPolicy)
		add("ports", c.Ports)
		add("readinessProbe", c.ReadinessProbe)
		add("livenessProbe", c.LivenessProbe)
		add("startupProbe", c.StartupProbe)
		add("resources", c.Resources)
	}
	if len(b.PodTemplate.Metadata.Annotations) > 0 {
		list = append(list, "podTemplate.metadata.annotations")
	}
	return list
}

// template returns the template of a Sandbox (forkd.dev).
func (b *blueprint) template(snapshot, network string, shutdown *metav1.Time) v1alpha1.SandboxTemplate {
	pod := &b.PodTemplate.Spec
	t := v1alpha1.SandboxTemplate{Snapshot: snapshot, Labels: b.PodTemplate.Metadata.Labels,
		NodeSelector: pod.NodeSelector}
	for _, e := range pod.Containers[0].Env {
		if t.Env == nil {
			t.Env = map[string]string{}
		}
		t.Env[e.Name] = e.Value
	}
	if network != "" {
		t.Network = &v1alpha1.Network{Mode: network}
	}
	// The daemon deletes the sandbox even if the operator is gone by then.
	if shutdown != nil {
		const year = 365 * 24 * time.Hour
		if left := time.Until(shutdown.Time); left < year {
			t.TimeoutSeconds = max(int32(math.Ceil(left.Seconds())), 1)
		}
	}
	return t
}

// sandboxFor returns the spec of the Sandbox of a claim, and its network mode.
func sandboxFor(claim *claimSpec, t *templateSpec, network string) (*sandboxSpec, string, error) {
	if err := t.check(); err != nil {
		return nil, "", err
	}
	managed := t.NetworkPolicyManagement != "Unmanaged"
	switch {
	case managed && t.NetworkPolicy != nil:
		return nil, "", wrong(reasonInvalid, "networkPolicy of the SandboxTemplate: forkd cannot apply it; remove it and set "+
			"the annotation %s to none or public", NetworkAnnotation)
	case network == "" && managed:
		network = "public" // what Managed promises: only the internet, no private networks
	}
	if len(claim.VolumeClaimTemplates) > 0 {
		return nil, "", wrong(reasonVolumes, "volumeClaimTemplates: a sandbox of forkd has no volumes")
	}
	if len(claim.AdditionalPodMetadata.Annotations) > 0 {
		return nil, "", wrong(reasonMetadata,
			"additionalPodMetadata.annotations: there is no pod that could have them; use labels")
	}
	s := &sandboxSpec{blueprint: t.blueprint, OperatingMode: modeRunning, ShutdownTime: claim.Lifecycle.ShutdownTime,
		ShutdownPolicy: "Retain"}
	s.PodTemplate.Metadata.Labels = maps.Clone(t.PodTemplate.Metadata.Labels)
	for name, value := range claim.AdditionalPodMetadata.Labels {
		if old, ok := s.PodTemplate.Metadata.Labels[name]; ok && old != value {
			return nil, "", wrong(reasonMetadata, "additionalPodMetadata.labels: the template has %s=%s", name, old)
		}
		if s.PodTemplate.Metadata.Labels == nil {
			s.PodTemplate.Metadata.Labels = map[string]string{}
		}
		s.PodTemplate.Metadata.Labels[name] = value
	}
	c := t.PodTemplate.Spec.Containers[0]
	c.Env = slices.Clone(c.Env)
	for _, e := range claim.Env {
		i := slices.IndexFunc(c.Env, func(old envVar) bool { return old.Name == e.Name })
		switch {
		case t.EnvVarsInjectionPolicy != "Allowed" && t.EnvVarsInjectionPolicy != "Overrides":
			return nil, "", wrong(reasonEnv, "env: envVarsInjectionPolicy of the SandboxTemplate is not Allowed or Overrides")
		case i >= 0 && t.EnvVarsInjectionPolicy != "Overrides":
			return nil, "", wrong(reasonEnv, "env: the template has %s already, and its envVarsInjectionPolicy is not Overrides",
				e.Name)
		case e.ContainerName != "" && e.ContainerName != c.Name:
			return nil, "", wrong(reasonEnv, "env: the template has no container %s", e.ContainerName)
		case i >= 0:
			c.Env[i].Value = e.Value
		default:
			c.Env = append(c.Env, envVar{Name: e.Name, Value: e.Value})
		}
	}
	s.PodTemplate.Spec.Containers = []container{c}
	return s, network, nil
}
