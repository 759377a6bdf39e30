// Package once stores the answers to requests that must be executed only once. If a client did not
// receive the answer, it can repeat the request, and gets the stored answer.
//
// An answer is kept for a day in a file, so that it outlives the daemon. A request is recorded
// before it is executed. If the daemon exits before it has recorded the answer, a repetition of the
// request fails with the error that the outcome is unknown. The package does not depend on HTTP,
// except that an answer has a status. The caller decides which requests are the same.
package once

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/record"
)

// Bounds on the answers kept for all clients: how long an answer is kept, how many there are, and
// their size in bytes. If maxAnswers or maxBytes is exceeded, the client with the largest share
// loses its oldest answer. So no client can displace other clients' answers.
const (
	Keep       = 24 * time.Hour
	maxAnswers = 4096
	maxBytes   = 64 << 20
)

// Reasons why a request was not executed.
var (
	ErrOther   = errors.New("the key was used for another request")
	ErrUnknown = errors.New("the first request with this key was carried out, or was under way when the daemon ended, " +
		"and its answer is not known: look what became of it")
)

// ErrUnanswered is the error of a request that was carried out, but whose answer could not be
// stored.
var ErrUnanswered = errors.New("the request was carried out, but there is no memory for its answer")

// unreadError is an ErrUnknown whose reason is that the record of the first request cannot be read.
type unreadError struct{ err error }

func (e *unreadError) Unwrap() []error { return []error{ErrUnknown, e.err} }

func (e *unreadError) Error() string {
	return "the record of the first request with this key cannot be read, so it is not known what became of it: " +
		e.err.Error()
}

// Key names a request, and Request is the digest of the request's content. Two requests with the
// same Key and different Requests are an error. The first bytes of a Key depend only on the client.
type (
	Key     [32]byte
	Request [32]byte
	client  [8]byte
)

// KeyOf returns the key for a client and the name that the client gave its request.
func KeyOf(who, name string) Key {
	key := Key(sha256.Sum256([]byte(who + "\n" + name)))
	of := sha256.Sum256([]byte(who))
	copy(key[:len(client{})], of[:])
	return key
}

func (k Key) client() client { return client(k[:len(client{})]) }

// Answer is the answer to a request.
type Answer struct {
	Status int
	Body   json.RawMessage
}

// kept is the index entry of a record.
type kept struct {
	key   Key
	at    time.Time
	bytes int64
}

// Book holds the answers of one daemon. Its methods may be called concurrently.
type Book struct {
	dir string
	now func() time.Time

	mu    sync.Mutex        // never held while a file is read or written, so that a slow disk delays only one request
	under map[Key]*underWay // the present use of each key; a key has only one use at a time
	index []kept            // one entry for each file, oldest first
}

// underWay is a use of a key: by a request that is executed, or by prune.
type underWay struct {
	done    chan struct{} // closed when the use ends
	begun   bool          // the request is recorded and being executed
	request Request       // valid if begun
}

// Open returns the book in dir, and creates dir if it is missing. It drops records that a power
// failure has truncated. If a record cannot be read for another reason, the record is kept as long
// as an answer is kept. During that time, a repetition of the request is refused, because the
// request may have been carried out.
func Open(dir string) (*Book, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the book of answers: %w", err)
	}
	b := &Book{dir: dir, now: time.Now, under: make(map[Key]*underWay)}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open the book of answers: %w", err)
	}
	for _, f := range files {
		name, _ := strings.CutSuffix(f.Name(), ".json")
		digest, err := hex.DecodeString(name)
		key := Key{}
		if err != nil || len(digest) != len(key) {
			os.Remove(filepath.Join(dir, f.Name())) // left by an interrupted write
			continue
		}
		copy(key[:], digest)
		r, err := b.read(key)
		info, infoErr := f.Info()
		bad := (*record.Error)(nil)
		switch {
		case infoErr != nil: // the file is gone
		case err == nil:
			b.index = append(b.index, kept{key, r.At, info.Size()})
		case errors.As(err, &bad) && bad.Torn:
			os.Remove(b.path(key))
		default:
			b.index = append(b.index, kept{key, info.ModTime(), info.Size()})
		}
	}
	slices.SortFunc(b.index, func(x, y kept) int { return x.at.Compare(y.at) })
	b.prune()
	return b, nil
}

func (b *Book) path(key Key) string { return filepath.Join(b.dir, hex.EncodeToString(key[:])+".json") }

func (b *Book) read(key Key) (*record.Once, error) {
	text, err := os.ReadFile(b.path(key))
	if err != nil {
		return nil, err
	}
	return record.ParseOnce(b.path(key), text)
}

// sizeOf returns the size of the record of a key, in bytes; 0 if there is none.
func (b *Book) sizeOf(key Key) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.IndexFunc(b.index, func(k kept) bool { return k.key == key }); i >= 0 {
		return b.index[i].bytes
	}
	return 0
}

// Do executes a request by calling do(). If there is an earlier request with the same key, Do
// returns the answer to that request instead, and true. If the earlier request is still running, Do
// waits for its end. An answer is stored if do() returns no error. If do() returns ErrUnanswered, a
// repetition of the request fails with ErrUnknown. After any other error, a repetition of the
// request is executed. Before Do reads a record, it calls take(size) with the record's size. If
// take returns an error, Do returns this error. Other errors come from do(), from ctx or from a
// file, or are ErrOther or ErrUnknown.
func (b *Book) Do(ctx context.Context, key Key, request Request, take func(size int64) error,
	do func() (Answer, error)) (a Answer, again bool, err error) {
	for {
		known, wait, err := b.begin(key, request, take)
		switch {
		case err != nil:
			return a, false, err
		case known != nil:
			return *known, true, nil
		case wait == nil:
			a, err = b.carryOut(key, request, do)
			return a, false, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return a, false, ctx.Err()
		}
	}
}

// Find returns the answer to an earlier request with the same key, or nil if there was none. In all
// other respects it is like Do, but it executes nothing and records nothing.
func (b *Book) Find(ctx context.Context, key Key, request Request, take func(size int64) error) (*Answer, error) {
	for {
		mine, wait, err := b.take(key, request)
		switch {
		case err != nil:
			return nil, err
		case mine != nil:
			defer b.leave(key)
			if err := take(b.sizeOf(key)); err != nil {
				return nil, err
			}
			return b.look(key, request)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// begin returns the answer to an earlier request, or a channel that is closed when the earlier
// request has ended. If both are nil, the caller must execute the request.
func (b *Book) begin(key Key, request Request, take func(int64) error) (*Answer, <-chan struct{}, error) {
	mine, wait, err := b.take(key, request)
	if mine == nil {
		return nil, wait, err
	}
	var a *Answer
	if err = take(b.sizeOf(key)); err == nil {
		a, err = b.look(key, request)
	}
	if a == nil && err == nil {
		err = b.write(key, request, nil)
	}
	if a != nil || err != nil {
		b.leave(key)
		return a, nil, err
	}
	b.mu.Lock()
	mine.begun, mine.request = true, request
	b.mu.Unlock()
	return nil, nil, nil
}

// take begins a use of a key. If the key is in use, it returns a channel that is closed at the end
// of that use.
func (b *Book) take(key Key, request Request) (mine *underWay, wait <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch other := b.under[key]; {
	case other == nil:
		mine = &underWay{done: make(chan struct{})}
		b.under[key] = mine
		return mine, nil, nil
	case other.begun && other.request != request:
		return nil, nil, ErrOther
	default:
		return nil, other.done, nil
	}
}

// leave ends the use of a key that take began, and wakes the callers that wait for its end.
func (b *Book) leave(key Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.under[key].done)
	delete(b.under, key)
}

// look returns the recorded answer to the request of a key. It returns nil if there is no record,
// or if the record has been kept for long enough. The caller must have begun a use of the key (see
// take).
func (b *Book) look(key Key, request Request) (*Answer, error) {
	r, err := b.read(key)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && b.now().Sub(r.At) >= Keep, err != nil && b.isOld(key):
		return nil, nil
	case err != nil:
		return nil, &unreadError{err}
	case r.Request != hex.EncodeToString(request[:]):
		return nil, ErrOther
	case r.Answer == nil:
		return nil, ErrUnknown
	}
	a := Answer(*r.Answer)
	return &a, nil
}

// isOld reports whether the record of a key has been kept for long enough.
func (b *Book) isOld(key Key) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.index, func(k kept) bool { return k.key == key && b.now().Sub(k.at) >= Keep })
}

// carryOut executes a request that begin has recorded.
func (b *Book) carryOut(key Key, request Request, do func() (Answer, error)) (a Answer, err error) {
	err = errors.New("panic")
	defer func() {
		switch {
		case err == nil:
			_ = b.write(key, request, &a) // if this fails, a repeated request gets ErrUnknown, because do() has run
		case !errors.Is(err, ErrUnanswered):
			b.drop(key)
		}
		b.leave(key)
		b.prune()
	}()
	a, err = do()
	return a, err
}

// write writes the record of a key that the caller uses.
func (b *Book) write(key Key, request Request, a *Answer) error {
	r := record.Once{At: b.now().UTC(), Request: hex.EncodeToString(request[:]), Answer: (*record.Answer)(a)}
	text, err := record.EncodeOnce(&r)
	if err == nil {
		err = atomicfile.Write(b.path(key), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("remember an answer: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgetLocked(key)
	b.index = append(b.index, kept{key, r.At, int64(len(text))})
	return nil
}

// drop removes the record of a key that the caller uses.
func (b *Book) drop(key Key) {
	os.Remove(b.path(key))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgetLocked(key)
}

func (b *Book) forgetLocked(key Key) {
	b.index = slices.DeleteFunc(b.index, func(k kept) bool { return k.key == key })
}

// prune removes records that are too old or exceed the bounds. It never removes the record of a
// running request.
func (b *Book) prune() {
	for {
		key, ok := b.takeSurplus()
		if !ok {
			return
		}
		b.drop(key)
		b.leave(key)
	}
}

// takeSurplus begins a use of the key whose record must be removed next.
func (b *Book) takeSurplus() (key Key, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := slices.IndexFunc(b.index, func(k kept) bool { return b.now().Sub(k.at) >= Keep && b.under[k.key] == nil })
	if old >= 0 {
		key, ok = b.index[old].key, true
	} else {
		key, ok = b.surplusLocked()
	}
	if ok {
		b.under[key] = &underWay{done: make(chan struct{})}
		b.forgetLocked(key) // prevents another call from counting the record again
	}
	return key, ok
}

// surplusLocked returns the record to remove if a bound is exceeded. The client with the greatest
// share of a bound loses its oldest answer. If several clients have the same share, the client with
// the oldest answer loses this answer.
func (b *Book) surplusLocked() (oldest Key, tooMuch bool) {
	shares := make(map[client]float64)
	var first []Key // oldest key of each client
	total := int64(0)
	for _, k := range b.index {
		total += k.bytes
		if b.under[k.key] != nil {
			continue
		}
		if shares[k.key.client()] == 0 {
			first = append(first, k.key)
		}
		shares[k.key.client()] += max(float64(k.bytes)/maxBytes, 1.0/maxAnswers)
	}
	if total <= maxBytes && len(b.index) <= maxAnswers || len(first) == 0 {
		return oldest, false
	}
	return slices.MaxFunc(first, func(x, y Key) int { return cmp.Compare(shares[x.client()], shares[y.client()]) }), true
}
