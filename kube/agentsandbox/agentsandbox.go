// Package agentsandbox serves the resources of Kubernetes SIG agent-sandbox (Sandbox,
// SandboxTemplate, SandboxWarmPool and SandboxClaim, version v1beta1) by forkd sandboxes, so that
// clients of agent-sandbox work without changes.
//
// It translates objects:
//
//	SandboxClaim ──► Sandbox (agents.x-k8s.io) ──► Sandbox (forkd.dev) ──► package operator
//
// A template or a Sandbox names its forkd Snapshot by an annotation. What a VM of forkd cannot do is
// refused with a condition that names the field; nothing is dropped silently.
//
// The package also serves the HTTP API that agent-sandbox's clients use inside a sandbox (Router).
// It makes no sandboxes and keeps no state: the objects have all of it. It starts no pods, Services
// or NetworkPolicies.
package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	forkd "github.com/forkd/forkd/client"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// Annotations of a Sandbox or a SandboxTemplate.
const (
	// SnapshotAnnotation has the name of a Snapshot (forkd.dev) in the same namespace.
	SnapshotAnnotation = "forkd.dev/snapshot"
	// NetworkAnnotation has the mode of the network policy: "none" or "public".
	NetworkAnnotation = "forkd.dev/network"
)

// ownerLabel is a label of Sandboxes (forkd.dev) with the uid of the Sandbox (agents.x-k8s.io) that
// they belong to.
const ownerLabel = "forkd.dev/agent-sandbox"

// finalizer keeps an object until its sandbox is deleted.
const finalizer = "forkd.dev/agent-sandbox"

const version = "v1beta1"

// The resources of agent-sandbox.
var (
	sandboxKind  = schema.GroupVersionKind{Group: "agents.x-k8s.io", Version: version, Kind: "Sandbox"}
	claimKind    = extension("SandboxClaim")
	templateKind = extension("SandboxTemplate")
	poolKind     = extension("SandboxWarmPool")
)

func extension(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "extensions.agents.x-k8s.io", Version: version, Kind: kind}
}

// Types of conditions.
const (
	conditionReady     = "Ready"
	conditionSuspended = "Suspended"
	// conditionApplied is false if parts of the object have no effect. Its message names them.
	conditionApplied = "FullyApplied"
)

// Reasons of the condition Ready. The clients of agent-sandbox know these reasons: they give up at
// reasonInvalid, reasonEnv, reasonMetadata, reasonVolumes, reasonFailed and the two expiries.
const (
	reasonReady           = "DependenciesReady"
	reasonNotReady        = "DependenciesNotReady"
	reasonSuspended       = "SandboxSuspended"
	reasonExpired         = "SandboxExpired"
	reasonInvalid         = "InvalidConfiguration"
	reasonFailed          = "PodFailed"
	reasonClaimExpired    = "ClaimExpired"
	reasonNoPool          = "WarmPoolNotFound"
	reasonNoTemplate      = "TemplateNotFound"
	reasonEnv             = "EnvVarsInjectionRejected"
	reasonMetadata        = "InvalidMetadata"
	reasonVolumes         = "VolumeClaimTemplatesError"
	reasonSandboxNotReady = "SandboxNotReady"
)

// Config configures the package.
type Config struct {
	// Connect returns a client of the daemon that has the sandbox of a Sandbox (forkd.dev), after the
	// daemon has confirmed that the id in the status is of a sandbox of this object.
	Connect func(ctx context.Context, s *v1alpha1.Sandbox) (*forkd.Client, error)
	// Interval is the time between two looks at an object that waits.
	Interval time.Duration
	// Bind is the address of the Router; empty: there is no Router.
	Bind string
	// Cert and Key are files with a certificate and its key. Only a loopback address needs none.
	Cert, Key string
}

// Add adds the controllers, and the Router if there is an address for it, to a manager.
func Add(mgr ctrl.Manager, cfg Config) error {
	for _, kind := range []schema.GroupVersionKind{sandboxKind, claimKind, templateKind, poolKind} {
		if _, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), version); meta.IsNoMatchError(err) {
			return fmt.Errorf("the cluster has no resource %s: apply packaging/kubernetes/agent-sandbox/crds.yaml",
				kind.GroupKind())
		} else if err != nil {
			return fmt.Errorf("agent-sandbox: %w", err)
		}
	}
	err := errors.Join((&sandboxes{mgr.GetClient(), mgr.GetAPIReader(), cfg.Interval}).setup(mgr),
		(&claims{mgr.GetClient(), mgr.GetAPIReader(), cfg.Interval}).setup(mgr))
	if err != nil || cfg.Bind == "" {
		return err
	}
	r, err := newRouter(mgr, &cfg)
	if err != nil {
		return err
	}
	return mgr.Add(r)
}

func newObject(kind schema.GroupVersionKind) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	return o
}

// get reads an object, and reports whether it exists.
func get(ctx context.Context, c kube.Reader, namespace, name string, o kube.Object) (bool, error) {
	err := c.Get(ctx, kube.ObjectKey{Namespace: namespace, Name: name}, o)
	return err == nil, kube.IgnoreNotFound(err)
}

// status has the fields of the statuses of all kinds.
type status struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	Sandbox  *claimed `json:"sandbox,omitempty"`  // of a SandboxClaim
	NodeName string   `json:"nodeName,omitempty"` // of a Sandbox
}

// claimed names the Sandbox of a SandboxClaim.
type claimed struct {
	Name string `json:"name,omitempty"`
}

// object is an object whose status a controller writes.
type object struct {
	*unstructured.Unstructured
	status, before status
}

// load reads an object with its status. It returns nil if the object does not exist.
func load(ctx context.Context, c kube.Reader, kind schema.GroupVersionKind, key kube.ObjectKey) (*object, error) {
	o := &object{Unstructured: newObject(kind)}
	if exists, err := get(ctx, c, key.Namespace, key.Name, o.Unstructured); err != nil || !exists {
		return nil, err
	}
	if text, ok := o.Object["status"].(map[string]any); ok {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(text, &o.status); err != nil {
			o.status = status{} // it is written again
		}
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(text, &o.before) // as above
	}
	return o, nil
}

// set sets a condition.
func (o *object) set(kind string, isTrue bool, reason, format string, args ...any) {
	value := metav1.ConditionFalse
	if isTrue {
		value = metav1.ConditionTrue
	}
	text := fmt.Sprintf(format, args...)
	meta.SetStatusCondition(&o.status.Conditions, metav1.Condition{Type: kind, Status: value, Reason: reason,
		Message: strings.ToValidUTF8(text[:min(len(text), 2000)], ""), ObservedGeneration: o.GetGeneration()})
}

// save writes the status if it has changed.
func (o *object) save(ctx context.Context, c kube.Client) error {
	if equality.Semantic.DeepEqual(o.status, o.before) {
		return nil
	}
	text, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&o.status)
	if err != nil {
		return err
	}
	o.Object["status"] = text
	if err := c.Status().Update(ctx, o.Unstructured); err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(text, &o.before)
}

// problem is why an object cannot be ready. It is not an error of this program.
type problem struct{ reason, message string }

func (p *problem) Error() string { return p.reason + ": " + p.message }

func wrong(reason, format string, args ...any) error {
	return &problem{reason, fmt.Sprintf(format, args...)}
}

// later returns the result of a Reconcile. A conflict is no error: a newer object is on its way.
func later(err error, after time.Duration) (reconcile.Result, error) {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}
	return reconcile.Result{RequeueAfter: after}, kube.IgnoreNotFound(err)
}

// refused reports whether the API server has refused an object because of its content.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// until returns the time to wait for t, at most most. The result is positive.
func until(t *metav1.Time, most time.Duration) time.Duration {
	if t == nil {
		return most
	}
	return max(min(time.Until(t.Time), most), time.Millisecond)
}

func hasPassed(t *metav1.Time) bool { return t != nil && !time.Now().Before(t.Time) }
