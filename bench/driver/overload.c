/*
 * Sessions whose answers must come in time: each sends a statement through libpq again and
 * again, also after an error, by which pgbench before 19 ends a session.
 *
 *	overload SESSIONS TIMEOUT RATE LOG SQL
 *
 * With RATE 0 (a closed loop), a session sends the next statement when the last has ended.
 * Otherwise RATE statements per second are due, at random times (Poisson arrivals), and a
 * session that is idle sends the oldest of them.  One that has been due for TIMEOUT ms is
 * given up unsent.  An answer that comes later than TIMEOUT ms goes into LOG like any other:
 * the driver counts it as late.
 *
 * LOG has the format of pgbench's, a line for each statement that has ended: session, 0, us
 * since it was due (or the SQLSTATE after an E, or "unsent"), 0, second and us of the end.
 * The environment says where to connect.  When all sessions have connected and begun, it
 * prints "progress:" on stderr.  SIGALRM ends it.
 */
#include <libpq-fe.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

typedef struct
{
	PGconn	   *conn;
	PostgresPollingStatusType connecting;	/* what it waits for */
	double		due;			/* when its statement was due */
	char		ended[8];		/* "", or what to log instead of a latency */
} Session;

static double timeout;			/* s */
static double rate;				/* per second, or 0 */
static FILE *output;
static const char *sql;
static Session *sessions;
static Session **idle;
static int	nidle = 0;
static volatile sig_atomic_t stopped = 0;

static void
stop(int signal_number)
{
	stopped = 1;
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void
check(const Session *session, int succeeded)
{
	if (succeeded)
		return;
	fprintf(stderr, "%s", PQerrorMessage(session->conn));
	exit(1);
}

/* Waits until this connection stands, or has failed. */
static void
finish_connecting(Session *session)
{
	while (session->connecting == PGRES_POLLING_READING || session->connecting == PGRES_POLLING_WRITING)
	{
		short		events = session->connecting == PGRES_POLLING_READING ? POLLIN : POLLOUT;
		struct pollfd socket = {PQsocket(session->conn), events};

		poll(&socket, 1, -1);
		session->connecting = PQconnectPoll(session->conn);
	}
}

static void
send_statement(Session *session, double due)
{
	session->due = due;
	session->ended[0] = '\0';
	check(session, PQsendQuery(session->conn, sql));
}

static void
log_end(long number, double due, const char *ended)
{
	double		end = now();
	char		latency[32];

	snprintf(latency, sizeof(latency), "%.0f", (end - due) * 1e6);
	fprintf(output, "%ld 0 %s 0 %.0f %.0f\n", number, *ended ? ended : latency,
			floor(end), floor((end - floor(end)) * 1e6));
}

/* Reads what has come.  After the end of its statement, the session is idle. */
static void
receive(Session *session)
{
	PGresult   *result;

	check(session, PQconsumeInput(session->conn));
	while (!PQisBusy(session->conn))
	{
		if ((result = PQgetResult(session->conn)) == NULL)
		{
			log_end(session - sessions, session->due, session->ended);
			idle[nidle++] = session;
			return;
		}
		if (PQresultStatus(result) == PGRES_FATAL_ERROR)
			snprintf(session->ended, sizeof(session->ended), "E%s", PQresultErrorField(result, PG_DIAG_SQLSTATE));
		PQclear(result);
	}
}

/* Sends what is due, as far as sessions are idle. */
static void
send_due(void)
{
	static double next = 0;		/* one of an open loop is due */
	double		time = now();

	if (next == 0)
		next = time;
	while (rate == 0 && nidle > 0)
		send_statement(idle[--nidle], time);
	for (; rate > 0 && next <= time; next -= log(1 - drand48()) / rate)
	{
		if (next + timeout < time)
			log_end(0, next, "unsent");
		else if (nidle > 0)
			send_statement(idle[--nidle], next);
		else
			break;
	}
}

int
main(int argc, char **argv)
{
	int			nsessions = atoi(argv[1]);
	int			events = epoll_create1(0);

	timeout = atof(argv[2]) / 1000;
	rate = atof(argv[3]);
	output = fopen(argv[4], "w");
	sql = argv[5];
	sessions = calloc(nsessions, sizeof(Session));
	idle = calloc(nsessions, sizeof(Session *));
	signal(SIGALRM, stop);
	/* All at once: one after the other, they wait for other sessions at work. */
	for (Session *session = sessions; session < sessions + nsessions; session++)
	{
		session->conn = PQconnectStart("");
		session->connecting = PQconnectPoll(session->conn);
	}
	for (Session *session = sessions; session < sessions + nsessions; session++)
	{
		struct epoll_event event = {EPOLLIN, {session}};

		finish_connecting(session);
		check(session, PQstatus(session->conn) == CONNECTION_OK);
		epoll_ctl(events, EPOLL_CTL_ADD, PQsocket(session->conn), &event);
		idle[nidle++] = session;
	}
	fprintf(stderr, "progress: %d sessions\n", nsessions);
	while (!stopped)
	{
		struct epoll_event event;

		send_due();
		if (epoll_wait(events, &event, 1, rate == 0 ? -1 : 1) == 1)
			receive(event.data.ptr);
	}
	return fclose(output) != 0;
}
