package face

import (
	"errors"
	"fmt"
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/move"
)

// SetNode sets the header that names the node of a sandbox, in the answer for an error which says
// that the sandbox has moved.
func SetNode(w http.ResponseWriter, err error) {
	if away := (*failure.AwayError)(nil); errors.As(err, &away) && away.Node != "" {
		w.Header().Set(apiv1.NodeHeader, away.Node)
	}
}

// NodeError says that a node of a cluster did not answer a request of a router. It does not unwrap
// to Err: the code of Err would hide the code of the NodeError.
type NodeError struct {
	Node string
	Sent bool // the node may have executed the request
	Err  error
}

func (e *NodeError) Error() string { return fmt.Sprintf("node %s: %v", e.Node, e.Err) }

// codeOfRouter returns the code of an error of a router or of a move, or the code of an unknown error.
func codeOfRouter(err error) code {
	var node *NodeError
	var away *failure.AwayError
	switch {
	case errors.As(err, &away) && away.Node != "":
		return codeMoved
	case away != nil:
		return codeMoving
	case is[*move.ConflictError](err):
		return codeConflict
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
