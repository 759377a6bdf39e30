package volfiles

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
)

// answerOf returns an answer with a body of JSON. If the VM has sent a status that filesproto does
// not have, the answer has the status 500.
func answerOf(status int, body []byte) Answer {
	switch status {
	case http.StatusOK, http.StatusCreated, http.StatusNoContent, http.StatusBadRequest, http.StatusNotFound,
		http.StatusMethodNotAllowed, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusInsufficientStorage:
	default:
		status = http.StatusInternalServerError
	}
	return Answer{status, int64(len(body)), bytes.NewReader(body), false}
}

// source is the body of a client's request. It keeps the error of the client's connection, which
// would otherwise look like an error of the VM's connection. After a call of the method end, it
// reads no more from the client, even if the VM has answered early.
type source struct {
	io.Reader

	mu sync.Mutex
	// +checklocks:mu
	failed error
	// +checklocks:mu
	ended bool
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.mu.Lock()
		s.failed = err
		s.mu.Unlock()
	}
	return n, err
}

func (s *source) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
}

func (s *source) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}
