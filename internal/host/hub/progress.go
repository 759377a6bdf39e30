package hub

import "time"

// Progress says what has happened to one file of a snapshot that is being pushed, pulled, copied
// or unpacked.
type Progress struct {
	File  string
	State string
	Bytes int64 // size of the blob
	Done  int64 // in the states Pulling and Pushing: number of bytes that have crossed the network
}

// Values of Progress.State.
const (
	Shared   = "shared"   // the store already has a file with this content
	Cached   = "cached"   // the cache has the blob from an earlier request
	Pulling  = "pulling"  // the blob is being received
	Fetched  = "pulled"   // the blob is complete and verified
	Unpacked = "unpacked" // the content is verified and written
	Exists   = "exists"   // the registry already has the blob
	Pushing  = "pushing"  // the blob is being sent
	Pushed   = "pushed"   // the registry has received the blob
)

// stepEvery is the time between two reports about the same file.
const stepEvery = 500 * time.Millisecond

// step reports the progress of one blob. Only one goroutine may use it.
type step struct {
	on   func(Progress)
	now  Progress
	last time.Time
}

// add counts n bytes.
func (s *step) add(n int64) {
	s.now.Done += n
	if t := time.Now(); t.Sub(s.last) >= stepEvery {
		s.last = t
		s.on(s.now)
	}
}

// end reports the last state.
func (s *step) end(state string) { s.on(Progress{File: s.now.File, State: state, Bytes: s.now.Bytes}) }
