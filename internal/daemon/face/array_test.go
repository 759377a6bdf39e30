package face

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// firstWrite is a ResponseWriter that closes a channel at the first write.
type firstWrite struct {
	*httptest.ResponseRecorder
	told func()
}

func (w *firstWrite) Write(p []byte) (int, error) {
	w.told()
	w.told = func() {}
	return w.ResponseRecorder.Write(p)
}

// WriteArray describes each member just before it writes the description. It does not describe all
// members before the first write.
func TestMembersAreDescribedAsTheyAreWritten(t *testing.T) {
	const member = 10 << 10
	text := strings.Repeat("x", member)
	described, before := 0, 0
	w := &firstWrite{httptest.NewRecorder(), func() { before = described }}
	err := WriteArray(w, make([]int, 1000), func(int) string {
		described++
		return text
	})
	if most := arrayPart/member + 1; err != nil || before > most || described != 1000 {
		t.Errorf("%v: %d were described before the first part was written, want at most %d; %d in all", err, before, most,
			described)
	}
	if want := "[" + strings.Repeat(`"`+text+`",`, 999) + `"` + text + `"]` + "\n"; w.Body.String() != want {
		t.Errorf("%d bytes, want %d", w.Body.Len(), len(want))
	}
	empty := httptest.NewRecorder()
	if err := WriteArray(empty, nil, func(int) string { return "" }); err != nil || empty.Body.String() != "[]\n" {
		t.Errorf("nothing: %q, %v", empty.Body, err)
	}
}

// unfit is a type that cannot be encoded as JSON.
type unfit struct{ text string }

func (u unfit) MarshalJSON() ([]byte, error) {
	if u.text == "" {
		return nil, errors.New("no JSON")
	}
	return []byte(`"` + u.text + `"`), nil
}

// If a member cannot be encoded, WriteArray returns an error. If it has already begun to write, it
// aborts the connection, so that the client does not mistake a part of the list for the whole list.
func TestMembersWithoutJSON(t *testing.T) {
	all := func(u unfit) unfit { return u }
	if err := WriteArray(httptest.NewRecorder(), []unfit{{"x"}, {}}, all); err == nil {
		t.Error("no error before the answer has begun")
	}
	defer func() {
		v := recover()
		if cut, ok := v.(error); !ok || !errors.Is(cut, http.ErrAbortHandler) {
			t.Errorf("%v, want the connection to be cut off", v)
		}
	}()
	_ = WriteArray(httptest.NewRecorder(), []unfit{{strings.Repeat("x", 2*arrayPart)}, {}}, all)
	t.Error("the answer was ended as if it were whole")
}
