package face

import "fmt"

// NodeError says that a node of a cluster did not answer a request of a router.
type NodeError struct {
	Node string
	Sent bool // the node may have executed the request
	Err  error
}

func (e *NodeError) Error() string { return fmt.Sprintf("node %s: %v", e.Node, e.Err) }

func (e *NodeError) Unwrap() error { return e.Err }

// NotRoutedError says that a router does not serve a request.
type NotRoutedError struct{ Reason string }

func (e *NotRoutedError) Error() string { return e.Reason }
