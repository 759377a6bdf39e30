package machineapi

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFramesReadBack(t *testing.T) {
	var buf bytes.Buffer
	if err := WriteFrame(&buf, FrameStdout, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := WriteFrame(&buf, FrameStdin, nil); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(&buf, FrameExit, ExecExit{Code: 3}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		t    FrameType
		body string
	}{{FrameStdout, "hello"}, {FrameStdin, ""}, {FrameExit, `{"code":3}`}} {
		typ, body, err := ReadFrame(&buf)
		if err != nil || typ != want.t || string(body) != want.body {
			t.Errorf("got %d %q %v, want %d %q", typ, body, err, want.t, want.body)
		}
	}
	if _, _, err := ReadFrame(&buf); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: got %v, want io.EOF", err)
	}
}

func TestReadFrameRefuses(t *testing.T) {
	for name, in := range map[string][]byte{
		"type 0": {0, 0, 0, 0, 0}, "unknown type": {99, 0, 0, 0, 0}, "too long": {1, 0xff, 0xff, 0xff, 0xff},
		"cut header": {1, 0, 0}, "cut payload": {1, 0, 0, 0, 4, 'a'}, "no payload": {1, 0, 0, 0, 4},
	} {
		if _, _, err := ReadFrame(bytes.NewReader(in)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: got %v, want an error that is not io.EOF", name, err)
		}
	}
	if err := WriteFrame(io.Discard, FrameStdout, make([]byte, MaxFrame+1)); err == nil {
		t.Error("write of a frame that is too long: no error")
	}
}
