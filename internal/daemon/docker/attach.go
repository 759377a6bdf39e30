package docker

import (
	"context"
	"net/http"

	"github.com/forkd/forkd/internal/host/agentclient"
)

// attach connects a client to the main process of a container, until the process ends. The client may
// attach before the container starts.
func (s *Server) attach(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	if err := checkDetachKeys(r.URL.Query().Get("detachKeys")); err != nil {
		return err
	}
	if c.status() == paused {
		return conflict("Container %s is paused, unpause the container before attach.", containerID(c.id))
	}
	sp := specOf(c.info)
	tty := sp.Config.TTY
	kept, reader := c.out.read()
	if boolQuery(r, "logs") {
		reader.close()
		if kept, reader, err = c.out.readAll(); err != nil {
			return err
		}
	}
	defer reader.close()
	out, err := s.hijack(w, r, tty)
	if err != nil {
		return err
	}
	defer out.conn.Close()
	ctx, cancel := out.whileConnected(s.life)
	defer cancel()
	wants := wantedStreams(r, tty)
	if boolQuery(r, "logs") {
		for _, e := range kept {
			if wants[e.from] && out.output(e.from, e.text) != nil {
				return nil
			}
		}
	}
	if !boolQuery(r, "stream") {
		return nil
	}
	if boolQuery(r, "stdin") && sp.Config.OpenStdin {
		go func() {
			if s.inputOf(ctx, c.container, out, sp.Config.StdinOnce) != nil {
				cancel() // the client has left or detached
			}
		}()
	}
	out.follow(ctx, reader, wants)
	return nil
}

// wantedStreams returns the outputs that the query of a request asks for. A process with a terminal
// has only stdout.
func wantedStreams(r *http.Request, tty bool) map[agentclient.Stream]bool {
	return map[agentclient.Stream]bool{agentclient.Stdout: boolQuery(r, "stdout") || tty,
		agentclient.Stderr: boolQuery(r, "stderr")}
}

// follow sends the output of a process until the process ends, the client leaves, or ctx ends.
func (t *stream) follow(ctx context.Context, from *reader, wants map[agentclient.Stream]bool) {
	for {
		select {
		case c := <-from.chunks:
			if wants[c.from] && t.output(c.from, c.text) != nil {
				return
			}
		case <-from.ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// inputOf waits until the main process of a container runs, and passes the client's input to it.
// Its last argument has the same meaning as that of stream.input.
func (s *Server) inputOf(ctx context.Context, c *container, from *stream, once bool) error {
	for {
		_, gone, changed := c.now()
		if p := c.process(); p != nil {
			select {
			case <-p.running:
			case <-ctx.Done():
				return ctx.Err()
			}
			return from.input(ctx, p, once)
		}
		if gone {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
