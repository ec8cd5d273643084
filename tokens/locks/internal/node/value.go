package node

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/locks"
)

// Other reads the value of a lock that somebody has: "TOKEN ID SINCE HOLDER", SINCE in milliseconds. A value that another program has set says
// nothing. A token of 0 is not known yet.
func Other(value string) (o locks.Other) {
	words := strings.Split(value, " ")
	if len(words) != 4 {
		return o
	}
	token, err := strconv.ParseInt(words[0], 10, 64)
	since, err2 := strconv.ParseInt(words[2], 10, 64)
	holder, err3 := tokens.ParseHolder(words[3])
	if err != nil || token < 0 || err2 != nil || err3 != nil {
		return o
	}
	return locks.Other{Holder: holder, Token: tokens.Token(token), Since: time.UnixMilli(since)}
}

// Millis is a time, or how long something lasts, as scripts have it.
func Millis(n int64) string { return strconv.FormatInt(n, 10) }

// Texts are the n texts that a script has answered.
func Texts(answer any, n int) ([]string, error) {
	values, _ := answer.([]any)
	texts := make([]string, 0, n)
	for _, v := range values {
		if text, ok := v.(string); ok {
			texts = append(texts, text)
		}
	}
	if len(texts) != n || len(values) != n {
		return nil, fmt.Errorf("an answer that no script of ours gives: %v", answer)
	}
	return texts, nil
}
