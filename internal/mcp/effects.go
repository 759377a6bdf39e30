package mcp

import (
	"context"

	"github.com/forkd/forkd/client"
)

// effectTools returns the tool for a sandbox's held requests.
func effectTools() []tool {
	return []tool{
		define(
			"effects",
			"List the requests of a sandbox that were held because of hold_effects, with their outcome. With release, end the hold: "+
				"waiting requests are sent to their servers; refused and recorded requests stay unsent.",
			Run, // bodies may contain secrets
			destructive|openWorld,
			effects,
		),
	}
}

// holdArgs are the arguments for a hold. Tools that make sandboxes have them.
type holdArgs struct {
	HoldEffects []string `json:"hold_effects,omitempty" jsonschema:"hosts, such as api.example.com or *.example.com, to which requests that may change something are held: see effects"`
	HoldAnswer  string   `json:"hold_answer,omitempty" jsonschema:"answer to a held request: refuse (an error; default), record (success, although nothing is sent) or wait (none until the hold ends)"`
}

// hold returns the hold that the arguments describe. If they name no host, it returns nil.
func (a holdArgs) hold() (*client.Hold, error) {
	if len(a.HoldEffects) == 0 {
		if a.HoldAnswer != "" {
			return nil, wrong("hold_answer", "needs hold_effects")
		}
		return nil, nil
	}
	return &client.Hold{Hosts: a.HoldEffects, Answer: a.HoldAnswer}, nil
}

type effectsResult struct {
	Hosts   []string        `json:"held_hosts" jsonschema:"hosts whose requests are held; empty: the sandbox may act"`
	Answer  string          `json:"answer,omitempty" jsonschema:"answer to a held request: refuse, record or wait"`
	Effects []client.Effect `json:"effects" jsonschema:"held requests, oldest first; the sandbox chooses their texts"`
	Omitted int             `json:"omitted,omitempty" jsonschema:"requests at the end of the list that are omitted"`
	Missed  uint64          `json:"missed,omitempty" jsonschema:"requests that were refused because the list was full"`
}

func effectsOf(e client.Effects) effectsResult {
	r := effectsResult{Hosts: []string{}, Effects: []client.Effect{}, Missed: e.Missed}
	if e.Hold != nil {
		r.Hosts, r.Answer = append(r.Hosts, e.Hold.Hosts...), e.Hold.Answer
	}
	left := room(maxText)
	for i, one := range e.List {
		if !left.fits(one) {
			r.Omitted = len(e.List) - i
			break
		}
		r.Effects = append(r.Effects, one)
	}
	return r
}

type effectArgs struct {
	SandboxID string `json:"sandbox_id"`
	Release   bool   `json:"release,omitempty" jsonschema:"end the hold"`
}

func effects(ctx context.Context, c *call, in effectArgs) (effectsResult, error) {
	look := c.Effects
	if in.Release {
		look = c.ReleaseEffects
	}
	e, err := look(ctx, in.SandboxID)
	return effectsOf(e), err
}
