package client

import (
	"encoding/json"
	"fmt"
	"io"
)

// events decodes a stream of JSON events. The decoder holds an event in memory until it is
// complete, so reading fails if an event is too long.
type events struct {
	decoder *json.Decoder
	from    io.Reader
	most    int // maximum number of bytes of an event
	left    int // bytes that may be read until the event is complete
}

func eventsOf(stream io.Reader, most int) *events {
	e := &events{from: stream, most: most}
	e.decoder = json.NewDecoder(e)
	return e
}

// next decodes the next event into v.
func (e *events) next(v any) error {
	e.left = e.most
	return e.decoder.Decode(v)
}

// Read implements io.Reader for the decoder.
func (e *events) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, fmt.Errorf("the daemon sent an event of more than %d MiB", e.most>>20)
	}
	n, err := e.from.Read(p[:min(len(p), e.left)])
	e.left -= n
	return n, err
}
