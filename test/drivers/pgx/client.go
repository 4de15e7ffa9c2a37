// What test/drivers/drivers.pl has pgx do: see there for the commands and answers.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	first  = "UPDATE t SET v = v + 1 WHERE id = 1"
	second = "UPDATE t SET v = v + 1 WHERE id = 2"
)

var (
	ctx         = context.Background()
	conn, used  *pgx.Conn
	pools       = map[string]*pgxpool.Pool{}
	lines       = bufio.NewScanner(os.Stdin)
	shortOfTime = 2 * time.Second
)

func try(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func connect() *pgx.Conn {
	made, err := pgx.Connect(ctx, "")
	try(err)
	return made
}

// A connection whose contexts cancel what runs, and do not close it.
func connectCanceling() *pgx.Conn {
	config, err := pgx.ParseConfig("")
	try(err)
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Minute}
	}
	made, err := pgx.ConnectConfig(ctx, config)
	try(err)
	return made
}

func told(err error) string {
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return "00000"
	case errors.As(err, &pgErr):
		return pgErr.Code + " PgError"
	case errors.Is(err, context.DeadlineExceeded):
		return "- DeadlineExceeded"
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return "- ErrTxCommitRollback"
	}
	return fmt.Sprintf("- %v", err)
}

func sql(text string) string {
	var value any
	rows, err := used.Query(ctx, text)
	if err == nil {
		if rows.Next() {
			values, _ := rows.Values()
			value = values[0]
		}
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		return told(err)
	}
	if value == nil {
		value = rows.CommandTag().RowsAffected()
	}
	return fmt.Sprintf("00000 %v", value)
}

func transaction(ctx context.Context) string {
	step := "BEGIN"
	err := pgx.BeginFunc(ctx, used, func(tx pgx.Tx) error {
		step = "first statement"
		if _, err := tx.Exec(ctx, first); err != nil {
			return err
		}
		step = "second statement"
		if _, err := tx.Exec(ctx, second); err != nil {
			return err
		}
		step = "COMMIT"
		return nil
	})
	if err != nil {
		return told(err) + " at " + step
	}
	return "00000"
}

// Goes on after errors, as no application should.
func heedless() string {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return told(err)
	}
	_, firstErr := tx.Exec(ctx, first)
	_, secondErr := tx.Exec(ctx, second)
	return told(firstErr) + ", " + told(secondErr) + ", " + told(tx.Commit(ctx))
}

// Cancels its statement when there is a further line.
func cancel() string {
	go func() {
		lines.Scan()
		try(conn.PgConn().CancelRequest(ctx))
	}()
	return sql(first)
}

func timeout() string {
	limited, done := context.WithTimeout(ctx, shortOfTime)
	defer done()
	_, err := used.Exec(limited, first)
	return told(err)
}

func timeoutOfTransaction() string {
	limited, done := context.WithTimeout(ctx, shortOfTime)
	defer done()
	return transaction(limited)
}

func prepared() string {
	var count int
	if _, err := conn.Prepare(ctx, "counted", "SELECT count(*) FROM t WHERE id = $1"); err != nil {
		return told(err)
	}
	if err := conn.QueryRow(ctx, "counted", 1).Scan(&count); err != nil {
		return told(err)
	}
	return fmt.Sprintf("00000 %d", count)
}

// All that a pgx.Conn or a pgx.Tx sends in one go
func batch(sender interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
}, texts ...string) (answers []string, err error) {
	batch := &pgx.Batch{}
	for _, text := range texts {
		batch.Queue(text)
	}
	results := sender.SendBatch(ctx, batch)
	for range texts {
		_, err := results.Exec()
		answers = append(answers, told(err))
	}
	return answers, results.Close()
}

func pipeline() string {
	answers, _ := batch(conn, first, second, first)
	return strings.Join(answers, ", ")
}

func pipelineOfTransaction() string {
	return told(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := batch(tx, first, second)
		return err
	}))
}

// Checks a connection out of a pool, and in.
func pool(check string) string {
	if pools[check] == nil {
		config, err := pgxpool.ParseConfig("pool_max_conns=1")
		try(err)
		if check == "query" {
			config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
				_, err := conn.Exec(ctx, "SELECT 1")
				return true, err
			}
		} else {
			config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
		}
		pools[check], err = pgxpool.NewWithConfig(ctx, config)
		try(err)
	}
	pooled, err := pools[check].Acquire(ctx)
	if err != nil {
		return told(err)
	}
	pooled.Release()
	return "00000"
}

// Whether the connection that was used last still works.
func usable() string {
	if !used.IsClosed() {
		if transaction(ctx) == "00000" {
			return "yes"
		}
	}
	conn = connect()
	return "no"
}

func run(command, rest string) string {
	if command != "usable" {
		used = conn
	}
	switch command {
	case "sql":
		return sql(rest)
	case "transaction":
		return transaction(ctx)
	case "heedless":
		return heedless()
	case "cancel":
		return cancel()
	case "timeout":
		return timeout()
	case "timeout_of_transaction":
		return timeoutOfTransaction()
	case "canceling_timeout":
		used = connectCanceling()
		return timeout()
	case "canceling_timeout_of_transaction":
		used = connectCanceling()
		return timeoutOfTransaction()
	case "prepared":
		return prepared()
	case "pipeline":
		return pipeline()
	case "pipeline_of_transaction":
		return pipelineOfTransaction()
	case "pool":
		return pool(rest)
	case "usable":
		return usable()
	}
	return "unknown command"
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/jackc/pgx/v5" {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return "unknown"
}

func main() {
	conn = connect()
	fmt.Println(version())
	for lines.Scan() {
		command, rest, _ := strings.Cut(lines.Text(), " ")
		fmt.Println(run(command, rest))
	}
}
