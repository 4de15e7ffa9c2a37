# Proves with real drivers, in front of a full gate, what docs/applications.md says: what each
# tells its application of a wait, a refusal, a cancel or a time-out, and that the
# connection is usable afterwards.
#
# test/drivers/run.sh has made a program of each driver that reads commands, one a line,
# and answers each with one line:
#	sql TEXT				sends a statement
#	transaction				a block of two updates, as the driver would have it
#	heedless				the same, but goes on after errors and commits
#	prepared				executes a prepared statement, which the first call prepares
#	pipeline				three updates in one go, or as many as the driver sends so
#	pipeline_of_transaction	two updates in one go, in a block
#	cancel					sends an update and cancels it when there is another line
#	timeout					an update, with a time-out of the client's of 2 s
#	timeout_of_transaction	the same for a block
#	pool CHECK				takes a connection out of a pool and puts it back: "query" has
#							each checked by SELECT 1, "default" is what there is otherwise
#	usable					the same as transaction, on the connection used last
# An answer is an SQLSTATE, "-" if there was an error without one, and what else there is
# to say: the error's class, or a value.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use IPC::Run   ();
use List::Util ();
use PostgreSQL::Test::Utils;
use Test::More;

# What a driver calls the errors, and what becomes of a client's own time-outs and cancels,
# of each the answer, whether the connection is usable then, and what the table has gained
my %drivers = (
	psycopg => {
		class => {
			'53000' => 'InsufficientResources',
			'53400' => 'ConfigurationLimitExceeded',
			'57014' => 'QueryCanceled',
			'25P02' => 'InFailedSqlTransaction'
		},
		pipelined => sub { $_[0] },
		pipelined_well => '00000 1,1,1',
		commit => '00000',
		timeout => [ '- TimeoutError', 'yes', 0 ],
		timeout_of_transaction => [ '- TimeoutError', 'yes', 0 ],
		refused_check => [ '- PoolTimeout', 0 ]
	},
	asyncpg => {
		class => {
			'53000' => 'InsufficientResourcesError',
			'53400' => 'ConfigurationLimitExceededError',
			'57014' => 'QueryCanceledError',
			'25P02' => 'InFailedSQLTransactionError'
		},
		pipelined => sub { $_[0] },
		pipelined_well => '00000',
		cancel => '- CancelledError',
		commit => '00000',
		timeout => [ '- TimeoutError', 'yes', 0 ],
		timeout_of_transaction => [ '- TimeoutError', 'after reset', 0 ],
		default_check => qr/^SELECT pg_advisory_unlock_all\(\)/,
		refused_check => [ '53000 InsufficientResourcesError at checkout', 1 ],
		refused_default => [ '53000 InsufficientResourcesError at checkin', 1 ]
	},
	pgjdbc => {
		class => { map { $_ => 'PSQLException' } qw(53000 53400 57014 25P02) },
		pipelined => sub { $_[0] =~ s/PSQL/BatchUpdate/r },
		pipelined_block => sub { $_[0] =~ s/PSQL/BatchUpdate/r },
		pipelined_well => '00000',
		commit => '00000',
		timeout => [ '57014 PSQLException', 'yes', 0 ],
		timeout_of_transaction => [ '57014 PSQLException at first statement', 'yes', 0 ],
		refused_check => [ '00000', 1 ]
	},
	pgx => {
		class => { map { $_ => 'PgError' } qw(53000 53400 57014 25P02) },
		pipelined => sub { join ', ', ($_[0]) x 3 },
		pipelined_well => '00000, 00000, 00000',
		commit => '- ErrTxCommitRollback',
		timeout => [ '- DeadlineExceeded', 'no', 0 ],
		timeout_of_transaction => [ '- DeadlineExceeded at BEGIN', 'no', 0 ],
		canceling_timeout => [ '57014 PgError', 'yes', 0 ],
		canceling_timeout_of_transaction => [ '- DeadlineExceeded at first statement', 'no', 0 ],
		refused_check => [ '53000 PgError', 0 ]
	},
	node => {
		class => { map { $_ => 'DatabaseError' } qw(53000 53400 57014 25P02) },
		pipelined => sub { join ', ', ($_[0]) x 3 },
		pipelined_well => '00000 UPDATE, 00000 UPDATE, 00000 UPDATE',
		pipelined_block => sub { "00000 BEGIN, $_[0], 25P02 DatabaseError, 00000 ROLLBACK" },
		commit => '00000 ROLLBACK',
		timeout => [ '- Error', 'yes', 1 ],
		timeout_of_transaction => [ '- Error', 'yes', 0 ],
		refused_check => [ '53000 DatabaseError', 0 ]
	});

my $update = 'UPDATE t SET v = v + 1 WHERE id = 1';

my $gate = GateTest->new(
	'drivers',
	listen_addresses => '127.0.0.1',
	max_active_backends => 1,
	pools => 'crowded: max_queue_length = 0',
	handoff_after => 0,
	lend_after => 60_000,
	log_connections => 'on');
$gate->value($_)
  foreach (
	'CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)',
	'INSERT INTO t VALUES (1, 0), (2, 0)',
	'GRANT ALL ON t TO PUBLIC',
	'CREATE ROLE patient LOGIN',
	'CREATE ROLE hasty LOGIN',
	"ALTER ROLE hasty SET admission_gate.queue_timeout = '100ms'",
	'CREATE ROLE crowded LOGIN',
	"ALTER ROLE crowded SET admission_gate.pool = 'crowded'");
my $holder = $gate->session;

sub full { return $holder->query('BEGIN'); }
sub free { return $holder->query('COMMIT'); }

# ----------------------------------------------------------------
# A driver's program
# ----------------------------------------------------------------

my ($name, $driver, $program, $input, $output, $complaints);

# Connects it as that role.  Returns the version of the driver.
sub start
{
	my ($role) = @_;

	local %ENV = (
		%ENV,
		PGHOST => '127.0.0.1',
		PGPORT => $gate->node->port,
		PGUSER => $role,
		PGDATABASE => 'postgres');
	($input, $output, $complaints) = ('', '', '');
	$program = IPC::Run::start(
		["$ENV{WORK}/drivers/$name/run"],
		'<' => \$input,
		'>' => \$output,
		'2>' => \$complaints);
	return answer();
}

# Has it read the end of its input.
sub stop
{
	my $ended = eval { $program->finish };
	undef $program;
	return $ended;
}

END { local $?; $program->kill_kill if $program; }

sub tell_it
{
	my ($command) = @_;
	$input .= "$command\n";
	$program->pump_nb;
	return;
}

sub answered { $program->pump_nb; return $output =~ /\n/; }

sub answer
{
	my $answered = eval { $gate->await_true(\&answered, "an answer of $name") };
	if (!$answered)
	{
		diag $complaints, $gate->report;
		die "$name does not answer\n";
	}
	$output =~ s/^(.*)\n//;
	return $1;
}

sub ask { tell_it(@_); return answer(); }

# ----------------------------------------------------------------
# Assertions
# ----------------------------------------------------------------

sub error_of { my ($sqlstate) = @_; return "$sqlstate $driver->{class}{$sqlstate}"; }

sub table { return $gate->value('SELECT sum(v) FROM t'); }

# Its answer to a command, and what the table has gained then
sub answers
{
	my ($command, $expected, $gain, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $before = table();
	my $answer = ask($command);
	is($answer . ', table +' . (table() - $before), "$expected, table +$gain", "$name: $what")
	  or diag $complaints;
	return;
}

sub ok_usable
{
	my ($expected) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my ($gain, $what) = $expected eq 'no' ? (0, 'that has closed the connection') : (2, 'the connection is usable');
	answers('usable', $expected, $gain, $what);
	return;
}

# The statement of a role of ours that waits
sub queued
{
	return $gate->value(
		"SELECT coalesce(string_agg(query, '; '), '')
		FROM pg_stat_admission_gate_backends b JOIN pg_stat_activity USING (pid)
		WHERE b.gate_state = 'waiting' AND usename IN ('patient', 'hasty', 'crowded')");
}

sub ok_queued
{
	my ($expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$gate->await_true(sub { queued() ne '' || answered() }, 'a statement in the queue');
	like(queued(), $expected, "$name: $what") or diag $complaints, $gate->report;
	return;
}

# HikariCP trusts a connection for half a second.
sub await_idle
{
	$gate->await(
		"SELECT coalesce(bool_and(state = 'idle' AND clock_timestamp() - state_change > '600 ms'), true)
		FROM pg_stat_activity WHERE usename IN ('patient', 'hasty')", 'idle sessions');
	return;
}

# ----------------------------------------------------------------
# What is tried
# ----------------------------------------------------------------

# Without a wait, so that what follows is not because of the program, nor of a first time
sub test_without_wait
{
	answers("sql $update", '00000 1', 1, 'a statement');
	answers('transaction', '00000', 2, 'a transaction');
	answers('prepared', '00000 1', 0, 'a prepared statement');
	answers('pipeline', $driver->{pipelined_well}, 3, 'a pipeline');
	like(ask('pipeline_of_transaction'), qr/^00000/, "$name: a transaction in a pipeline");
	answers("pool $_", '00000', 0, "a pool, $_") foreach ('query', 'default');
	return;
}

sub test_wait
{
	my %waits = (
		"sql $update" => [ '00000 1', 1, qr/^UPDATE/ ],
		'transaction' => [ '00000', 2, qr/^BEGIN/i ],
		'prepared' => [ '00000 1', 0, qr/^SELECT count/ ],
		'pipeline' => [ $driver->{pipelined_well}, 3, qr/^UPDATE/ ],
		'pool query' => [ '00000', 0, qr/^(?:BEGIN|SELECT 1)$/ ]);
	foreach my $command (sort keys %waits)
	{
		my ($expected, $gain, $queued) = @{ $waits{$command} };
		await_idle() if $command =~ /^pool/;
		my $before = table();
		full();
		tell_it($command);
		ok_queued($queued, "$command: queues");
		free();
		is(answer(), $expected, "$name: $command: succeeds then");
		is(table() - $before, $gain, "$name: $command: all of it");
	}
	return;
}

sub test_cancel
{
	my $canceled = error_of('57014');

	full();
	tell_it('cancel');
	ok_queued(qr/^UPDATE/, 'a statement queues');
	tell_it('now');
	is(answer(), $driver->{cancel} // $canceled, "$name: the driver cancels it");
	$gate->await_waiting(0);
	free();
	ok_usable('yes');

	foreach my $command ("sql $update", 'transaction')
	{
		my $expected = $command eq 'transaction' ? "$canceled at first statement" : $canceled;
		my $before = table();
		full();
		tell_it($command);
		ok_queued(qr/^(?:UPDATE|BEGIN)/i, "$command: queues");
		$gate->value("SELECT pg_cancel_backend(pid) FROM pg_stat_admission_gate_backends WHERE gate_state = 'waiting'");
		is(answer(), $expected, "$name: $command: another session cancels it");
		is(table() - $before, 0, "$name: and it does nothing");
		free();
		ok_usable('yes');
	}
	return;
}

sub test_statement_timeout
{
	ask("sql SET statement_timeout = '100ms'");
	full();
	answers("sql $update", error_of('57014'), 0, 'statement_timeout in the queue');
	answers('transaction', error_of('57014') . ' at first statement', 0, 'statement_timeout at BEGIN');
	free();
	ask('sql SET statement_timeout = 0');
	ok_usable('yes');
	return;
}

sub test_client_timeouts
{
	foreach my $command (sort grep { /timeout/ } keys %$driver)
	{
		my ($expected, $usable, $gain) = @{ $driver->{$command} };
		my $queued = $gate->counter('queued');
		my $before = table();
		full();
		is(ask($command), $expected, "$name: $command of the client, while it queues");
		is($gate->counter('queued'), $queued + 1, "$name: $command: it has queued");
		if ($name eq 'node')
		{
			is($gate->counter('waiting'), 1, "$name: $command: it goes on waiting");
		}
		else
		{
			$gate->await_waiting(0);
			pass("$name: $command: it leaves the queue");
		}
		free();
		$gate->await_waiting(0);
		$gate->await(
			"SELECT coalesce(bool_and(state <> 'active'), true) FROM pg_stat_activity WHERE usename = 'patient'",
			'the end of the statement');
		is(table() - $before, $gain, "$name: $command: " . ($gain ? 'it is carried out later' : 'it does nothing'));
		ok_usable($usable);
	}
	return;
}

# A pool's own check, which passes a full gate; but asyncpg's, when a connection is put back
sub test_default_pool
{
	full();
	tell_it('pool default');
	if ($driver->{default_check})
	{
		ok_queued($driver->{default_check}, 'the default pool queues when a connection is put back');
	}
	else
	{
		is(answer(), '00000', "$name: the default pool passes the full gate");
	}
	free();
	is(answer(), '00000', "$name: then it has done so") if $driver->{default_check};

	return;
}

# asyncpg resets a connection that it puts back, however late it is, unless the application
# has a way that passes
sub test_asyncpg_pool
{
	answers('pool reset', '00000', 0, 'a pool with a reset of its own');
	full();
	answers('pool reset', '00000', 0, 'a reset without SELECT passes the full gate');
	answers('timeout_of_pool reset', '- TimeoutError', 0, 'and so does one after a time-out');
	tell_it('timeout_of_pool default');
	$gate->await_true(sub { answered() || queued() =~ /pg_advisory_unlock_all/ }, 'the reset');
	like(queued(), qr/pg_advisory_unlock_all/, "$name: a default pool queues after the client's time-out");
	free();
	is(answer(), '- TimeoutError', "$name: only then the client is told of it");
	return;
}

# What is refused, for that reason.  The session logs in, and the pools are made, while the
# gate is full or not.
sub test_refusals
{
	my ($sqlstate) = @_;
	my $refused = error_of($sqlstate);
	my $block = $driver->{pipelined_block} // sub { $_[0] };

	full();
	answers("sql $update", $refused, 0, 'a statement is refused');
	answers('transaction', "$refused at first statement", 0, 'a transaction is refused');
	answers('heedless', "$refused, " . error_of('25P02') . ", $driver->{commit}",
		0, 'a client that goes on commits nothing');
	answers('prepared', $refused, 0, 'a prepared statement is refused');
	answers('pipeline', $driver->{pipelined}->($refused), 0, 'a pipeline is refused');
	answers('pipeline_of_transaction', $block->($refused), 0, 'a transaction in a pipeline is refused');
	free();
	ok_usable('yes');
	answers('prepared', '00000 1', 0, 'the prepared statement is there') foreach (1, 2);
	answers('pipeline', $driver->{pipelined_well}, 3, 'a pipeline works');
	return;
}

# A check that is refused, and whether it costs the connection
sub test_refused_pool
{
	my %expected = (query => $driver->{refused_check}, default => $driver->{refused_default} // [ '00000', 0 ]);

	foreach my $check (sort keys %expected)
	{
		my ($answer, $logins) = @{ $expected{$check} };
		ask("pool $check");
		await_idle();
		my $logged = -s $gate->node->logfile;
		full();
		answers("pool $check", $answer, 0, "a pool while all is refused: $check");
		free();
		answers("pool $check", '00000', 0, 'the pool works again');
		my $log = slurp_file($gate->node->logfile, $logged);
		is(scalar(() = $log =~ /connection authorized: user=hasty/g), $logins, "$name: with so many new connections");
	}
	return;
}

# ----------------------------------------------------------------

my $manual = slurp_file("$FindBin::RealBin/../../docs/applications.md");

sub test_driver
{
	my $version = start('patient');
	my ($row) = $manual =~ /^(\| \S+ \Q$version\E \|.*)$/m;
	ok($row, "$name $version is the version in docs/applications.md");
	my @classes = List::Util::uniq(sort values %{ $driver->{class} });
	like($row // '', qr/`\Q$_\E`/, "$name: docs/applications.md has its class $_") foreach @classes;
	test_without_wait();
	test_wait();
	test_cancel();
	test_statement_timeout();
	test_client_timeouts();
	test_default_pool();
	test_asyncpg_pool() if $name eq 'asyncpg';
	ok(stop(), "$name: the program ends well");

	foreach my $role ('hasty', 'crowded')
	{
		full();
		is(start($role), $version, "$name: $role: to connect takes no slot");
		free();
		test_refusals($role eq 'hasty' ? '53000' : '53400');
		test_refused_pool() if $role eq 'hasty';
		ok(stop(), "$name: $role: the program ends well");
	}
	$gate->ok_quiet("after $name");
	$gate->ok_adds_up("after $name");
	return;
}

foreach (split ' ', $ENV{DRIVERS} // join ' ', sort keys %drivers)
{
	$name = $_;
	$driver = $drivers{$name};
	my $failure = "$ENV{WORK}/drivers/$name/failure";
	if (-e $failure)
	{
		fail("$name: cannot be had here");
		diag slurp_file($failure);
		next;
	}
	next if eval { test_driver(); 1 };
	fail("$name: $@");
	$program->kill_kill if $program;
	undef $program;
	$gate->end_sessions;
	$holder = $gate->session;
}

$holder->quit;
$gate->node->stop;

done_testing();
