// Package v1alpha1 contains the Kubernetes resources of forkd: Snapshot, Sandbox and SandboxPool.
// It contains no behaviour. The operator (package operator) acts on these resources.
//
// +kubebuilder:object:generate=true
// +groupName=forkd.dev
package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Types of conditions.
const (
	// Ready is true if the object is as its spec says. Its reason and message say what is missing,
	// or why a deletion waits.
	Ready = "Ready"
)

// Labels of Sandboxes in Kubernetes.
const (
	// PoolLabel has the name of the pool that made the Sandbox.
	PoolLabel = "forkd.dev/pool"
	// ClaimLabel, with any value, takes the Sandbox out of its pool. The pool then makes another
	// one.
	ClaimLabel = "forkd.dev/claim"
)

// Snapshot is a snapshot of a registry, which the operator pulls to nodes. Its tag on the nodes is
// NAMESPACE.NAME.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Wanted",type=integer,JSONPath=`.status.wanted`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name becomes part of a tag: want at most 63 characters"
type Snapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SnapshotSpec   `json:"spec"`
	Status SnapshotStatus `json:"status,omitempty"`
}

// SnapshotSpec says which snapshot is wanted, and where.
//
// +kubebuilder:validation:XValidation:rule="self.reference == oldSelf.reference",message="reference cannot change: sandboxes run from the snapshot; make another Snapshot"
type SnapshotSpec struct {
	// Reference names the snapshot in a registry: REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST. The
	// operator resolves a tag once; later changes of the tag have no effect.
	//
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9.-]+(:[0-9]+)?/[a-z0-9._/-]+(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|@sha256:[0-9a-f]{64})$`
	Reference string `json:"reference"`

	// NodeSelector selects the nodes by their labels in Kubernetes. Empty: all nodes with a daemon.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// NodeState says how far a node is with a snapshot.
//
// +kubebuilder:validation:Enum=Pulling;Ready;Failed;Conflict
type NodeState string

// The states of a snapshot on a node.
const (
	NodePulling  NodeState = "Pulling"
	NodeReady    NodeState = "Ready"
	NodeFailed   NodeState = "Failed"   // the operator will try again
	NodeConflict NodeState = "Conflict" // the node has another snapshot with the tag, which the operator leaves alone
)

// SnapshotNode is a node that has the snapshot, or shall have it.
type SnapshotNode struct {
	Name  string    `json:"name"`
	State NodeState `json:"state"`
	// Message says why the state is Failed or Conflict.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// SnapshotStatus says where the snapshot is.
type SnapshotStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Tag is the tag of the snapshot on the nodes.
	//
	// +optional
	Tag string `json:"tag,omitempty"`
	// Digest is the digest of the artifact in the registry.
	//
	// +optional
	Digest string `json:"digest,omitempty"`
	// Ready and Wanted are numbers of nodes.
	Ready  int32 `json:"ready"`
	Wanted int32 `json:"wanted"`
	// +optional
	// +listType=map
	// +listMapKey=name
	Nodes []SnapshotNode `json:"nodes,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SnapshotList is a list of Snapshots.
//
// +kubebuilder:object:root=true
type SnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Snapshot `json:"items"`
}

// Mode says whether a sandbox shall run.
//
// +kubebuilder:validation:Enum=Running;Suspended
type Mode string

// The operating modes. A suspended sandbox is on the disk of its node, and needs no memory.
const (
	ModeRunning   Mode = "Running"
	ModeSuspended Mode = "Suspended"
)

// Network is the network policy of a sandbox. The mode "open" is missing, because only
// administrators of the daemons may use it.
type Network struct {
	// +kubebuilder:validation:Enum=none;public;allow
	Mode string `json:"mode"`
	// Allow and Deny are rules: a name, *.name, an address or a network, with an optional port.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=300
	Allow []string `json:"allow,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=300
	Deny []string `json:"deny,omitempty"`
}

// SandboxTemplate has the fields that a Sandbox and the template of a pool share. They cannot
// change, because a sandbox keeps them for its life.
type SandboxTemplate struct {
	// Snapshot is the name of a Snapshot in the same namespace.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Snapshot string `json:"snapshot"`
	// Labels of the sandbox in forkd's API. Names that begin with kube- belong to the operator.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^[A-Za-z0-9._/-]{1,63}$') && !k.startsWith('kube-') && size(self[k]) <= 256)",message="want names of 1 to 63 letters, digits and ._/- that do not begin with kube-, and values of at most 256 bytes"
	Labels map[string]string `json:"labels,omitempty"`
	// Env has environment variables of the commands in the sandbox.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Env map[string]string `json:"env,omitempty"`
	// Network is the network policy. Default: the policy of the snapshot.
	//
	// +optional
	Network *Network `json:"network,omitempty"`
	// TimeoutSeconds is the time after which the daemon deletes the sandbox; 0: never.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// IdleTimeoutSeconds is the time without a request after which the daemon suspends the sandbox;
	// 0: never. The next request resumes it.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	IdleTimeoutSeconds int32 `json:"idleTimeoutSeconds,omitempty"`
	// NodeSelector selects nodes by their labels in Kubernetes. Empty: all nodes with the snapshot.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// SandboxSpec describes a sandbox.
//
// +kubebuilder:validation:XValidation:rule="self.snapshot == oldSelf.snapshot && has(self.labels) == has(oldSelf.labels) && (!has(self.labels) || self.labels == oldSelf.labels) && has(self.env) == has(oldSelf.env) && (!has(self.env) || self.env == oldSelf.env) && has(self.network) == has(oldSelf.network) && (!has(self.network) || self.network == oldSelf.network) && has(self.timeoutSeconds) == has(oldSelf.timeoutSeconds) && (!has(self.timeoutSeconds) || self.timeoutSeconds == oldSelf.timeoutSeconds) && has(self.idleTimeoutSeconds) == has(oldSelf.idleTimeoutSeconds) && (!has(self.idleTimeoutSeconds) || self.idleTimeoutSeconds == oldSelf.idleTimeoutSeconds) && has(self.nodeSelector) == has(oldSelf.nodeSelector) && (!has(self.nodeSelector) || self.nodeSelector == oldSelf.nodeSelector)",message="only operatingMode can change"
type SandboxSpec struct {
	SandboxTemplate `json:",inline"`

	// OperatingMode suspends or resumes the sandbox when it changes.
	//
	// +optional
	// +kubebuilder:default=Running
	OperatingMode Mode `json:"operatingMode,omitempty"`
}

// Phase is the phase of a Sandbox's life.
//
// +kubebuilder:validation:Enum=Pending;Running;Suspended;Ended
type Phase string

// The phases of a Sandbox.
const (
	Pending   Phase = "Pending"
	Running   Phase = "Running"
	Suspended Phase = "Suspended"
	Ended     Phase = "Ended" // the sandbox no longer exists, or its VM has exited. The operator makes no other one.
)

// SandboxStatus says what the operator knows about the sandbox.
type SandboxStatus struct {
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// Node is the node of the sandbox. The operator writes it before it asks the node for the
	// sandbox. So at most this node can have the sandbox, whatever happens to the operator.
	//
	// +optional
	Node string `json:"node,omitempty"`
	// Attempt is the number of the request for the sandbox; part of its Idempotency-Key.
	//
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// ID is the id in forkd's API.
	//
	// +optional
	ID string `json:"id,omitempty"`
	// URL is the address of the sandbox in the router's API.
	//
	// +optional
	URL string `json:"url,omitempty"`
	// State is the state in forkd's API.
	//
	// +optional
	State string `json:"state,omitempty"`
	// Mode is the operating mode that was last applied.
	//
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Sandbox is a sandbox on one of the nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`
// +kubebuilder:printcolumn:name="ID",type=string,JSONPath=`.status.id`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Sandbox struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SandboxSpec   `json:"spec"`
	Status SandboxStatus `json:"status,omitempty"`
}

// SandboxList is a list of Sandboxes.
//
// +kubebuilder:object:root=true
type SandboxList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Sandbox `json:"items"`
}

// SandboxPoolSpec describes a pool.
//
// +kubebuilder:validation:XValidation:rule="self.template == oldSelf.template",message="template cannot change: make another pool"
type SandboxPoolSpec struct {
	// Replicas is the number of unclaimed Sandboxes.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas int32           `json:"replicas"`
	Template SandboxTemplate `json:"template"`
}

// SandboxPoolStatus says how many Sandboxes the pool has.
type SandboxPoolStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Total is the number of unclaimed Sandboxes, and Ready is the number of those that run.
	Total int32 `json:"total"`
	Ready int32 `json:"ready"`
	// Selector selects the Sandboxes of the pool, for the scale subresource.
	//
	// +optional
	Selector string `json:"selector,omitempty"`
}

// SandboxPool keeps a number of unclaimed Sandboxes. A client claims a Sandbox with
// the label forkd.dev/claim.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.total,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=`.status.total`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 57",message="the name becomes part of the names of Sandboxes and a label: want at most 57 characters"
type SandboxPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SandboxPoolSpec   `json:"spec"`
	Status SandboxPoolStatus `json:"status,omitempty"`
}

// SandboxPoolList is a list of SandboxPools.
//
// +kubebuilder:object:root=true
type SandboxPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SandboxPool `json:"items"`
}
