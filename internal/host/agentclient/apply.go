package agentclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// maxApplied is the maximum size of the answer to Apply, in bytes. The answer may name twenty long
// paths.
const maxApplied = 512 << 10

// ErrNoApply means that the agent is too old to apply changes.
var ErrNoApply = errors.New("the agent of this sandbox's snapshot is too old to apply changes: build the snapshot again")

// Apply sends the archive of a merge (see package diffproto) to the guest, which makes all changes
// in the archive, or none. If the guest could not make the changes, the answer has the reason.
func (c *Client) Apply(ctx context.Context, archive io.Reader) (answer agentproto.Applied, err error) {
	const op = "apply changes"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, envdURL+"/apply", archive)
	if err != nil {
		return answer, fmt.Errorf("%s: %w", op, err)
	}
	resp, err := c.envd.Do(req)
	if err != nil {
		return answer, fmt.Errorf("%s: %w", op, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return answer, ErrNoApply
	case resp.StatusCode == http.StatusConflict:
		return answer, &Error{Op: op, Code: CodeUnavailable, Message: "other changes are being applied: try again"}
	case resp.StatusCode/100 != 2:
		return answer, httpError(op, resp)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxApplied)).Decode(&answer); err != nil {
		return answer, fmt.Errorf("%s: the answer: %w", op, err)
	}
	answer.Error = cut(answer.Error, maxText)
	return answer, nil
}
