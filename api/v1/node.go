package v1

// RouterNodes lists the nodes of a router.
type RouterNodes struct {
	Nodes []RouterNode `json:"nodes"`
}

// RouterNode is what a router knows about a node. If the node cannot be used, only the first four
// fields are known.
type RouterNode struct {
	Name     string `json:"name"`
	URL      string `json:"url"`             // address of its daemon
	Cordoned bool   `json:"cordoned"`        // the router's list says that it gets no new sandboxes
	Error    string `json:"error,omitempty"` // why it cannot be used; empty if it can

	// Load is the used fraction of the scarcest resource of the node: 1 is full.
	Load          float64 `json:"load"`
	Sandboxes     uint64  `json:"sandboxes"`     // with a VM
	MaxSandboxes  uint64  `json:"max_sandboxes"` // 0: no limit
	MemoryMiB     uint64  `json:"memory_mib"`    // for sandboxes; 0: unknown
	UsedMemoryMiB uint64  `json:"used_memory_mib"`
}
