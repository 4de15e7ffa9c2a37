# Proves with real drivers, in front of a full gate, what docs/applications.md says: what each
# tells its application of a wait, a refusal, a cancel or a time-out, and that the
# connection is usable afterwards.
#
# test/drivers/fetch.sh has made a program of each driver that reads commands, one a line,
# and answers each with one line:
#	sql TEXT				sends a statement
#	transaction				a block of two updates, as the driver would have it
#	heedless				the same, but goes on after errors, as no application should
#	pipeline				three updates in one go, or as many as the driver sends so
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
use lib 'test/perl';
use GateTest;
use List::Util qw(uniq);

# What a driver calls the errors; what it makes of pipelines, of a COMMIT in a failed block,
# of its own cancel, and of a check that is refused (with the new connections that costs);
# and of a client's time-outs the answer, whether the connection is usable then, and what
# the table has gained.
my @sqlstates = qw(53000 53400 57014 25P02);
my %drivers = (
	psycopg => {
		classes => [qw(InsufficientResources ConfigurationLimitExceeded QueryCanceled InFailedSqlTransaction)],
		pipelined_well => '00000 1,1,1',
		timeout => [ '- TimeoutError', 'yes', 0 ],
		timeout_of_transaction => [ '- TimeoutError', 'yes', 0 ],
		refused_check => [ '- PoolTimeout', 0 ]
	},
	asyncpg => {
		classes => [
			qw(InsufficientResourcesError ConfigurationLimitExceededError QueryCanceledError InFailedSQLTransactionError)
		],
		cancel => '- CancelledError',
		timeout => [ '- TimeoutError', 'yes', 0 ],
		timeout_of_transaction => [ '- TimeoutError', 'after reset', 0 ],
		refused_check => [ '53000 InsufficientResourcesError at checkout', 1 ],
		refused_default => [ '53000 InsufficientResourcesError at checkin', 1 ]
	},
	pgjdbc => {
		classes => [ ('PSQLException') x 4 ],
		pipelined => sub { $_[0] =~ s/PSQL/BatchUpdate/r },
		timeout => [ '57014 PSQLException', 'yes', 0 ],
		timeout_of_transaction => [ '57014 PSQLException at first statement', 'yes', 0 ],
		refused_check => [ '00000', 1 ]
	},
	pgx => {
		classes => [ ('PgError') x 4 ],
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
		classes => [ ('DatabaseError') x 4 ],
		pipelined => sub { join ', ', ($_[0]) x 3 },
		pipelined_well => '00000 UPDATE, 00000 UPDATE, 00000 UPDATE',
		commit => '00000 ROLLBACK',
		timeout => [ '- Error', 'yes', 1 ],
		timeout_of_transaction => [ '- Error', 'yes', 0 ],
		refused_check => [ '53000 DatabaseError', 0 ]
	});

my $update = 'UPDATE t SET v = v + 1 WHERE id = 1';
my $manual = slurp_file('docs/applications.md');

my $gate = GateTest->new(
	'drivers',
	listen_addresses => '127.0.0.1',
	max_active_backends => 1,
	pools => 'crowded: max_queue_length = 0',
	idle_after => -1,
	log_connections => 'on');
$gate->value(
	'CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)',
	'INSERT INTO t VALUES (1, 0), (2, 0)',
	'GRANT ALL ON t TO PUBLIC',
	'CREATE ROLE patient LOGIN',
	'CREATE ROLE hasty LOGIN',
	"ALTER ROLE hasty SET admission_gate.queue_timeout = '100ms'",
	'CREATE ROLE crowded LOGIN',
	"ALTER ROLE crowded SET admission_gate.pool = 'crowded'");
my $holder = $gate->session;

my ($name, $driver, $program, $input, $output, $complaints);

END { local $?; $program->kill_kill if $program; }

sub full { return $holder->query('BEGIN'); }
sub free { return $holder->query('COMMIT'); }

# Connects it as that role.  Returns the version of the driver.
sub start
{
	my ($role) = @_;

	local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} = ('127.0.0.1', $gate->node->port, $role, 'postgres');
	($input, $output, $complaints) = ('', '', '');
	$program = IPC::Run::start(
		["$ENV{WORK}/drivers/$name/run"],
		'<' => \$input,
		'>' => \$output,
		'2>' => \$complaints);
	return answer();
}

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
	eval { $gate->await_true(\&answered, "an answer of $name") }
	  or die "$name does not answer: $complaints\n" . $gate->report . "\n";
	$output =~ s/^(.*)\n//;
	return $1;
}

sub ask { tell_it(@_); return answer(); }

sub table { return $gate->value('SELECT sum(v) FROM t'); }

# Its answer to a command, and what the table has gained then.  queued: what is in the
# queue before, with the gate full until then; meanwhile: what to do then
sub answers
{
	my ($command, $expected, $gain, $what, $queued, $meanwhile) = @_;
	my $before = table();
	full() if $queued;
	tell_it($command);
	ok_queued($queued, "$command: queues") if $queued;
	$meanwhile->() if $meanwhile;
	free() if $queued && !$meanwhile;
	my $answer = answer();
	$gate->await_waiting(0) if $meanwhile;    # asyncpg answers before its cancel request arrives
	is($answer . ', table +' . (table() - $before), "$expected, table +$gain", "$name: $what") or diag $complaints;
	free() if $meanwhile;
	return;
}

sub ok_usable
{
	my ($expected) = @_;
	return answers('usable', 'no', 0, 'that has closed the connection') if $expected eq 'no';
	return answers('usable', $expected, 2, 'the connection is usable');
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

# First without a wait, so that what follows is not because of the program, nor of a first
# time
sub test_wait
{
	my %waits = (
		"sql $update" => [ '00000 1', 1, qr/^UPDATE/ ],
		'transaction' => [ '00000', 2, qr/^BEGIN/i ],
		'pipeline' => [ $driver->{pipelined_well}, 3, qr/^UPDATE/ ],
		'pool query' => [ '00000', 0, qr/^(?:BEGIN|SELECT 1)$/ ]);

	answers($_, @{ $waits{$_} }[ 0, 1 ], "$_, without a wait") foreach sort keys %waits;
	answers('pool default', '00000', 0, 'a pool, default');
	foreach my $command (sort keys %waits)
	{
		my ($expected, $gain, $queued) = @{ $waits{$command} };
		await_idle() if $command =~ /^pool/;
		answers($command, $expected, $gain, "$command: succeeds then", $queued);
	}
	return;
}

sub test_cancel
{
	my ($canceled) = @_;
	answers('cancel', $driver->{cancel} // $canceled, 0, 'the driver cancels it', qr/^UPDATE/, sub { tell_it('now') });
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
		my $waits_on = $name eq 'node' ? 1 : 0;
		$gate->ok_comes("sum(waiting) = $waits_on FROM pg_stat_admission_gate",
			"$name: $command: it leaves the queue, or not");
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

# A pool's own check passes a full gate; but asyncpg resets a connection that it puts back,
# however late it is, unless the application has a way that passes.
sub test_default_pool
{
	full();
	answers('pool default', '00000', 0, 'the default pool passes the full gate') if $name ne 'asyncpg';
	free();
	return if $name ne 'asyncpg';
	my $reset = qr/^SELECT pg_advisory_unlock_all\(\)/;
	answers('pool default', '00000', 0, 'the default pool waits to put a connection back', $reset);
	answers('pool reset', '00000', 0, 'a pool with a reset of its own');
	full();
	answers('pool reset', '00000', 0, 'a reset without SELECT passes the full gate');
	answers('timeout_of_pool reset', '- TimeoutError', 0, 'and so does one after a time-out');
	tell_it('timeout_of_pool default');
	$gate->await_true(sub { answered() || queued() =~ $reset }, 'the reset');
	like(queued(), $reset, "$name: a default pool queues after the client's time-out");
	free();
	is(answer(), '- TimeoutError', "$name: only then the client is told of it");
	return;
}

sub test_refusals
{
	my ($refused, $failed) = @_;
	full();
	answers("sql $update", $refused, 0, 'a statement is refused');
	answers('transaction', "$refused at first statement", 0, 'a transaction is refused');
	answers('heedless', "$refused, $failed, $driver->{commit}", 0, 'a client that goes on commits nothing');
	answers('pipeline', $driver->{pipelined} ? $driver->{pipelined}->($refused) : $refused, 0, 'a pipeline is refused');
	free();
	ok_usable('yes');
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

sub test_driver
{
	my %error;
	@error{@sqlstates} = map { "$sqlstates[$_] $driver->{classes}[$_]" } 0 .. 3;
	$driver->{commit}         //= '00000';
	$driver->{pipelined_well} //= '00000';

	my $version = start('patient');
	my ($row) = $manual =~ /^(\| \S+ \Q$version\E \|.*)$/m;
	ok($row, "$name $version is the version in docs/applications.md");
	like($row // '', qr/`\Q$_\E`/, "$name: docs/applications.md has its class $_")
	  foreach uniq(@{ $driver->{classes} });
	test_wait();
	test_cancel($error{57014});
	test_client_timeouts();
	test_default_pool();
	ok(eval { $program->finish }, "$name: the program ends well");

	foreach my $role ('hasty', 'crowded')
	{
		full();
		is(start($role), $version, "$name: $role: to connect takes no slot");
		free();
		test_refusals($error{ $role eq 'hasty' ? '53000' : '53400' }, $error{'25P02'});
		test_refused_pool() if $role eq 'hasty';
		$program->finish;
	}
	$gate->ok_quiet("after $name");
	return;
}

foreach (split ' ', $ENV{DRIVERS} // join ' ', sort keys %drivers)
{
	$name = $_;
	$driver = $drivers{$name} // BAIL_OUT("unknown driver \"$name\" in DRIVERS");
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
