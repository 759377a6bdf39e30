package face

import (
	"errors"
	"fmt"
)

// NodeError says that a node of a cluster did not answer a request of a router. It does not unwrap
// to Err: the code of Err would hide the code of the NodeError.
type NodeError struct {
	Node string
	Sent bool // the node may have executed the request
	Err  error
}

func (e *NodeError) Error() string { return fmt.Sprintf("node %s: %v", e.Node, e.Err) }

// codeOfRouter returns the code of an error of a router, or the code of an unknown error.
func codeOfRouter(err error) code {
	var node *NodeError
	switch {
	case is[*NotRoutedError](err):
		return codeNotRouted
	case !errors.As(err, &node):
		return codeInternal
	case node.Sent:
		return codeNodeFailed
	}
	return codeNode
}

// NotRoutedError says that a router does not serve a request.
type NotRoutedError struct{ Reason string }

func (e *NotRoutedError) Error() string { return e.Reason }
