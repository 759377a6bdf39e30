package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	v1 "github.com/forkd/forkd/api/v1"
)

// maxTryEvent bounds an event of a try, in bytes. An output of MaxTryOutput bytes is at most six times
// as long in JSON.
const maxTryEvent = 16 << 20

// Try branches a sandbox once, forks children of the branch and runs a command in each. It passes
// the children to the callback started, and each result, as it arrives, to the callback result.
// Either callback may be nil. Try returns the outcome. If ctx ends, if a callback returns an error,
// or if Try returns an error, no child stays and the sandbox is unchanged. There are two
// exceptions. A promotion that has begun is completed. If the promotion fails, the winner stays,
// and the error names the winner.
func (c *Client) Try(ctx context.Context, id string, req TryRequest, started func(TryStarted) error,
	result func(TryResult) error) (end TryEnd, err error) {
	if err := checkTry(req); err != nil {
		return end, err
	}
	p, err := json.Marshal(req)
	if err != nil {
		return end, err
	}
	resp, err := c.send(ctx, http.MethodPost, sandboxPath(id, "/try"), bytes.NewReader(p), http.Header{
		"Content-Type": {"application/json"}, "Accept": {v1.NDJSON},
	})
	if err != nil {
		return end, err
	}
	defer resp.Body.Close() // if the last line has not arrived, this makes the daemon kill the children
	for events := eventsOf(resp.Body, maxTryEvent); ; {
		var e v1.TryEvent
		if err := events.next(&e); err != nil {
			return end, broken(ctx, "try", 0, err)
		}
		switch {
		case e.End != nil:
			return *e.End, nil
		case e.Error != "":
			return end, &Error{Status: e.Status, Message: e.Error, Code: e.Code}
		case e.Started != nil && started != nil:
			err = started(*e.Started)
		case e.Result != nil && result != nil:
			err = result(*e.Result)
		}
		if err != nil {
			return end, err
		}
	}
}
