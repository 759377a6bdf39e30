package client

import (
	"strings"
	"testing"
)

// A build is not asked for with other bytes than those it was given: JSON has no bytes but text.
func TestBuildOfBytes(t *testing.T) {
	c, err := New("http://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range []BuildRequest{
		{Tag: "x", Dockerfile: "FROM x\nRUN echo \xe9\n"},
		{Tag: "x", Dockerfile: "FROM x\n", Args: map[string]string{"A": "\xe9"}},
	} {
		if _, err := c.Build(t.Context(), req, nil, nil); err == nil || !strings.Contains(err.Error(), "is not UTF-8") {
			t.Errorf("%+v: %v", req, err)
		}
	}
}
