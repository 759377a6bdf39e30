package face

import "time"

// Limits bound what clients and guests can hold of the daemon. A zero field is its default. Of calls,
// streams and followers one client has three quarters at most.
type Limits struct {
	Calls      int           // calls to guests at once, and likewise operations on sandboxes and snapshots; 512
	PerSandbox int           // of the calls to guests, those to one; 128
	Memory     int           // bytes of bodies and answers that all requests at once may hold, but for small ones; 512 MiB
	Reads      int           // reads of one thing, and likewise ends and requests without a token; 2048
	Lists      int           // answers at once with all that there is of a kind, half of them for one client; 64
	Stall      time.Duration // how long a request's body or a file may stand still; 2 minutes

	// Streams to ports of guests at once, and of these, those to one guest; and the same of those
	// that come by signed URLs, so that strangers keep nobody else out. An agent carries
	// agentproto.MaxDialed of both kinds.
	Streams, StreamsPerSandbox int           // 512, 64
	Signed, SignedPerSandbox   int           // 256, 48
	Idle                       time.Duration // how long such a stream may stand still; an hour

	// Requests by signed URLs to one sandbox: a second, and at once after a while without any.
	SignedPerSecond float64 // 100
	SignedBurst     int     // 1000: a page of a development server loads hundreds of files

	Followers int           // streams of events at once, and likewise answers from consoles, half of these from one; 128
	Keepalive time.Duration // how often the former say something where nothing happens; 15 seconds
}

func (l Limits) withDefaults() Limits {
	for _, d := range []struct {
		field *int
		def   int
	}{
		{&l.Calls, 512}, {&l.PerSandbox, 128}, {&l.Reads, 2048}, {&l.Lists, 64}, {&l.Memory, 512 << 20}, {&l.Streams, 512},
		{&l.StreamsPerSandbox, 64},
		{&l.Signed, 256}, {&l.SignedPerSandbox, 48}, {&l.SignedBurst, 1000}, {&l.Followers, 128},
	} {
		if *d.field == 0 {
			*d.field = d.def
		}
	}
	if l.SignedPerSecond == 0 {
		l.SignedPerSecond = 100
	}
	if l.Stall == 0 {
		l.Stall = 2 * time.Minute
	}
	if l.Idle == 0 {
		l.Idle = time.Hour
	}
	if l.Keepalive == 0 {
		l.Keepalive = 15 * time.Second
	}
	return l
}
