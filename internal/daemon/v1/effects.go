package v1

import (
	"encoding/base64"
	"errors"
	"net/http"
	"unicode/utf8"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// holdOf converts the hold in a request. The result is off if the request has none.
func holdOf(h *apiv1.Hold) (netproto.Hold, error) {
	if h == nil {
		return netproto.Hold{}, nil
	}
	hold, err := netproto.ParseHold(h.Hosts, h.Answer)
	if field, ok := errors.AsType[*netproto.FieldError](err); ok {
		return hold, &invalid.Error{Field: "hold_effects." + field.Field, Reason: field.Reason}
	}
	return hold, err
}

// holdFor describes a hold; nil if it is off.
func holdFor(h *netproto.Hold) *apiv1.Hold {
	if !h.On() {
		return nil
	}
	return &apiv1.Hold{Hosts: netproto.Texts(h.Hosts), Answer: h.Answer.String()}
}

func effectsOf(list []netproto.Effect) []apiv1.Effect {
	out := make([]apiv1.Effect, len(list))
	for i, e := range list {
		out[i] = apiv1.Effect{ID: e.ID, Unix: e.Unix, Method: e.Method, URL: e.URL, Headers: e.Headers,
			Truncated: e.Truncated, Outcome: e.Outcome}
		if utf8.Valid(e.Body) {
			out[i].Body = string(e.Body)
		} else {
			out[i].BodyBase64 = base64.StdEncoding.EncodeToString(e.Body)
		}
	}
	return out
}

func (a *api) effects(r *http.Request) (out apiv1.Effects, err error) {
	id := r.PathValue("id")
	i, err := a.view(r).Sandbox(id)
	if err != nil {
		return out, err
	}
	e, err := a.view(r).Effects(r.Context(), id)
	return apiv1.Effects{Hold: holdFor(&i.Network.Hold), Since: e.Since, Missed: e.Missed, List: effectsOf(e.List)}, err
}

// releaseEffects ends the hold of a sandbox, and answers with the requests that were held until then.
func (a *api) releaseEffects(r *http.Request, _ *struct{}) (out apiv1.Effects, err error) {
	if out, err = a.effects(r); err != nil {
		return out, err
	}
	_, err = a.view(r).ReleaseEffects(r.Context(), r.PathValue("id"))
	out.Hold = nil
	return out, err
}
