package cli

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// secondsValue is a flag for a time: a number of seconds, or a duration such as 90s, 2m or 7d.
type secondsValue float64

func (s *secondsValue) String() string {
	if hours := float64(*s) / 3600; hours >= 1 && hours == math.Trunc(hours) {
		return strconv.FormatFloat(hours, 'f', -1, 64) + "h"
	}
	return strconv.FormatFloat(float64(*s), 'g', -1, 64)
}
func (s *secondsValue) Type() string { return "time" }

func (s *secondsValue) duration() time.Duration {
	return time.Duration(float64(*s) * float64(time.Second))
}

func (s *secondsValue) Set(text string) error {
	v, err := strconv.ParseFloat(text, 64)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		v, err = strconv.ParseFloat(days, 64)
		v *= 24 * 60 * 60
	} else if err != nil {
		var d time.Duration
		d, err = time.ParseDuration(text)
		v = d.Seconds()
	}
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return errors.New("want a number of seconds, or a time such as 90s, 2m or 7d")
	}
	*s = secondsValue(v)
	return nil
}

// timeoutFlag registers --timeout with the default of 30 seconds.
func timeoutFlag(f *pflag.FlagSet, to *float64, usage string) {
	*to = 30
	f.Var((*secondsValue)(to), "timeout", usage+"; also a time such as 2m")
}

// notANumber matches errors of package strconv, which users would not understand.
var notANumber = regexp.MustCompile(`strconv\.\w+: parsing "[^"]*": (invalid syntax|value out of range)`)

// plainFlagError rewrites the error of a flag for users.
func plainFlagError(err error) error {
	text := notANumber.ReplaceAllStringFunc(err.Error(), func(found string) string {
		if notANumber.FindStringSubmatch(found)[1] == "invalid syntax" {
			return "want a number"
		}
		return "the number is too large"
	})
	return usageError{fmt.Errorf("%s", text)}
}
