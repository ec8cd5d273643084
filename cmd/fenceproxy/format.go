package main

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
)

var formats = []string{"table", "json", "jsonl", "csv"}

// addFormatFlag adds --format.
func addFormatFlag(cmd *cobra.Command) {
	cmd.Flags().String("format", "table", "how to print: "+strings.Join(formats, ", "))
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

func formatOf(cmd *cobra.Command) (string, error) {
	format, err := cmd.Flags().GetString("format")
	if err == nil && !slices.Contains(formats, format) {
		err = fmt.Errorf("--format %q: there are %s", format, strings.Join(formats, ", "))
	}
	return format, err
}

// A column of a table or of a CSV file.
type column[T any] struct {
	title string
	cell  func(T) string
}

// A listing says how rows are printed. As JSON they print themselves.
type listing[T any] struct {
	table []column[T] // for people
	csv   []column[T] // for programs: everything, named as in JSON
	none  string      // what a table without rows says
}

func (l listing[T]) print(w io.Writer, format string, rows []T) error {
	switch format {
	case "json":
		return printJSON(w, rows)
	case "jsonl":
		return printJSONL(w, rows)
	case "csv":
		return printCSV(w, l.csv, rows)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, l.none)
		return err
	}
	return printTable(w, l.table, rows)
}

func printTable[T any](w io.Writer, columns []column[T], rows []T) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(cell func(column[T]) string) {
		cells := make([]string, len(columns))
		for i, c := range columns {
			cells[i] = cmp.Or(printable(cell(c)), "-")
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")) // t keeps an error for Flush
	}
	line(func(c column[T]) string { return c.title })
	for _, row := range rows {
		line(func(c column[T]) string { return c.cell(row) })
	}
	return t.Flush()
}

func printCSV[T any](w io.Writer, columns []column[T], rows []T) error {
	c := csv.NewWriter(w)
	record := make([]string, len(columns))
	for i, col := range columns {
		record[i] = col.title
	}
	_ = c.Write(record) // c keeps an error for Error
	for _, row := range rows {
		for i, col := range columns {
			record[i] = col.cell(row)
		}
		_ = c.Write(record)
	}
	c.Flush()
	return c.Error()
}

func printJSON(w io.Writer, value any) error {
	b, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, printableJSON(string(b)))
	return err
}

func printJSONL[T any](w io.Writer, rows []T) error {
	for _, row := range rows {
		b, err := json.Marshal(row)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w, printableJSON(string(b))); err != nil {
			return err
		}
	}
	return nil
}

// printable is s with everything escaped that a terminal would act on, or that would make a line read otherwise than it is stored.
// A client chooses its user agent and its keys, and an operator reads them.
func printable(s string) string {
	return escape(s, func(r rune) string {
		quoted := strconv.QuoteRune(r)
		return quoted[1 : len(quoted)-1]
	})
}

// printableJSON does it with JSON's own escapes, so that programs read the same. encoding/json leaves 0x7f and up as they are.
func printableJSON(s string) string {
	return escape(s, func(r rune) string {
		if r == '\n' {
			return "\n" // of the layout: one in a string is escaped already
		}
		if r > 0xffff {
			r -= 0x10000
			return fmt.Sprintf(`\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
		return fmt.Sprintf(`\u%04x`, r)
	})
}

func escape(s string, with func(rune) string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(with(r))
		}
	}
	return b.String()
}

// localTime is t as the operator's clock shows it; "" for no time.
func localTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}
