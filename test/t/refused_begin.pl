# Proves that a refused BEGIN leaves its transaction open and bound to fail: nothing
# that a client goes on to send is committed, one by one or at all, whatever refused
# it, however it is sent.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use GateTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $gate = GateTest->new('refused_begin', max_active_backends => 1, lend_after => 60_000, max_connections => 30);

$gate->value($_) foreach ('CREATE TABLE t (id int PRIMARY KEY, v int)', 'INSERT INTO t VALUES (1, 0), (2, 0)');

# What refuses a BEGIN: settings of the server and of the session, what to do once the
# session waits, and the SQLSTATE
my %refusals = (
	'queue_timeout' => { session => { 'admission_gate.queue_timeout' => '50ms' }, sqlstate => '53000' },
	'a full queue' => { server => { max_queue_length => 0 }, sqlstate => '53400' },
	'statement_timeout' => { session => { statement_timeout => '500ms' }, sqlstate => '57014' },
	'a cancel' => {
		sqlstate => '57014',
		act => sub { $gate->await_queued($_[0]); $_[0]->cancel }
	});

# The errors, and the state of the transaction, that the server told for each message
sub answers
{
	my ($session, @messages) = @_;

	return map {
		ref $_ ? $_->($session) : $session->start($_);
		my $result = $session->result;
		($result->{error} ? $result->{error}{C} : ($result->{tags}[-1] // '')) . " $result->{status}";
	} @messages;
}

sub table { return $gate->value('SELECT sum(v) FROM t'); }

# Sends BEGIN, which is refused, and lets the refusal happen.
sub begin_refused
{
	my ($session, $refusal, $begin) = @_;

	ref $begin ? $begin->($session) : $session->start($begin);
	$refusal->{act}->($session) if $refusal->{act};
	my $result = $session->result;
	return ($result->{error} ? $result->{error}{C} : $result->{tags}[0]) . " $result->{status}";
}

for my $what (sort keys %refusals)
{
	my $refusal = $refusals{$what};
	my $sqlstate = $refusal->{sqlstate};
	my $begin = sub { $gate->session(session => $refusal->{session} // {}) };
	my $worker = $gate->worker;
	$gate->set(%{ $refusal->{server} }) if $refusal->{server};

	# As psql sends a script
	my $session = $begin->();
	is(begin_refused($session, $refusal, 'BEGIN'), 'BEGIN T', "$what: BEGIN opens a block");
	is_deeply(
		[ answers($session, 'UPDATE t SET v = 1 WHERE id = 1', 'UPDATE t SET v = 1 WHERE id = 2', 'ROLLBACK') ],
		[ "$sqlstate E", '25P02 E', 'ROLLBACK I' ],
		'whose first statement fails for the reason, and the others for it');
	is(table(), '0', 'and nothing is committed');

	is(begin_refused($session, $refusal, 'BEGIN'), 'BEGIN T', "$what: the session can try again");
	is_deeply(
		[ answers($session, 'UPDATE t SET v = 1 WHERE id = 1', 'UPDATE t SET v = 1 WHERE id = 2', 'COMMIT') ],
		[ "$sqlstate E", '25P02 E', 'ROLLBACK I' ],
		'COMMIT rolls back');
	is(table(), '0', 'and nothing is committed');

	# At all isolation levels, and with what passes without a slot in between
	for my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
	{
		is( begin_refused($session, $refusal, "START TRANSACTION ISOLATION LEVEL $level"),
			'START TRANSACTION T',
			"$what, $level: a block");
		is_deeply(
			[
				answers(
					$session,
					'SHOW transaction_isolation',
					'SET LOCAL work_mem = 1000',
					'SELECT sum(v) FROM t',
					'COMMIT')
			],
			[ 'SHOW T', 'SET T', "$sqlstate E", 'ROLLBACK I' ],
			'that fails where it needs the slot');
	}

	# Savepoints
	is(begin_refused($session, $refusal, 'BEGIN'), 'BEGIN T', "$what, savepoint: a block");
	is_deeply(
		[
			answers(
				$session, 'SAVEPOINT a',
				'UPDATE t SET v = 1 WHERE id = 1',
				'ROLLBACK TO a',
				'UPDATE t SET v = 1 WHERE id = 1', 'COMMIT')
		],
		[ "$sqlstate E", '25P02 E', '3B001 E', '25P02 E', 'ROLLBACK I' ],
		'in which there is none to go back to');
	is(table(), '0', 'and nothing is committed');

	# COMMIT AND CHAIN
	is(begin_refused($session, $refusal, 'BEGIN'), 'BEGIN T', "$what, chain: a block");
	is_deeply(
		[ answers($session, 'UPDATE t SET v = 1 WHERE id = 1', 'ROLLBACK AND CHAIN', 'SHOW work_mem', 'ROLLBACK') ],
		[ "$sqlstate E", 'ROLLBACK T', 'SHOW T', 'ROLLBACK I' ],
		'whose successor is not refused');

	# Nothing was to be done: then nothing fails
	is(begin_refused($session, $refusal, 'BEGIN'), 'BEGIN T', "$what, empty: a block");
	is_deeply([ answers($session, 'COMMIT') ], ['COMMIT I'], 'that is committed');

	# The extended protocol
	is(begin_refused($session, $refusal, sub { $_[0]->start_extended('BEGIN') }), 'BEGIN T',
		"$what, extended: a block");
	is_deeply(
		[
			answers(
				$session,
				sub { $_[0]->start_extended('UPDATE t SET v = 1 WHERE id = $1', 1) },
				'UPDATE t SET v = 1 WHERE id = 2', 'COMMIT')
		],
		[ "$sqlstate E", '25P02 E', 'ROLLBACK I' ],
		'that fails');
	is(table(), '0', 'and nothing is committed');

	# A pipeline: all in one go, each with its Sync, and all with one
	for my $sync ('each', 'one')
	{
		my @pipeline = ('BEGIN', 'UPDATE t SET v = 1 WHERE id = 1', 'UPDATE t SET v = 1 WHERE id = 2', 'COMMIT');
		for my $i (0 .. $#pipeline)
		{
			$session->parse('', $pipeline[$i])->bind('', '')->execute('');
			$session->sync if $sync eq 'each' || $i == $#pipeline;
		}
		$refusal->{act}->($session) if $refusal->{act};
		my @results = map { $session->result } 1 .. ($sync eq 'each' ? 4 : 1);
		my ($error) = map { $_->{error}{C} } grep { $_->{error} } @results;
		is($error, $sqlstate, "$what, a pipeline with $sync Sync: fails for the reason");
		$session->query('ROLLBACK');
		is(table(), '0', 'and nothing is committed');
	}

	# The message as it would have been, with where it happened
	is(begin_refused($session, $refusal, 'BEGIN'), 'BEGIN T', "$what, message: a block");
	my $error = $session->start('SELECT 1')->result->{error};
	like($error->{W} // '', qr/^while waiting for admission/, 'the error tells where it happened')
	  if $refusal->{act} || $what eq 'statement_timeout';
	like($error->{H} // '', qr/admission_gate\./, 'the error tells which setting to change') if $sqlstate =~ /^53/;
	$session->query('ROLLBACK');

	$gate->set(max_queue_length => -1) if $refusal->{server};
	$gate->stop_worker($worker);
	$gate->ok_quiet("after $what");
	$session->query('SET statement_timeout = 0');
	is_deeply(
		[ answers($session, 'BEGIN', 'UPDATE t SET v = v WHERE id = 1', 'COMMIT') ],
		[ 'BEGIN T', 'UPDATE 1 T', 'COMMIT I' ],
		"$what: the session works afterwards");
	$session->quit;
}

# In statement scope, BEGIN is not what waits.
{
	my $worker = $gate->worker;
	my $session =
	  $gate->session(session => { 'admission_gate.scope' => 'statement', 'admission_gate.queue_timeout' => '50ms' });
	is_deeply(
		[ answers($session, 'BEGIN', 'UPDATE t SET v = 1 WHERE id = 1', 'UPDATE t SET v = 1 WHERE id = 2', 'COMMIT') ],
		[ 'BEGIN T', '53000 E', '25P02 E', 'ROLLBACK I' ],
		'in statement scope, the first statement fails');
	is(table(), '0', 'and nothing is committed');
	$gate->stop_worker($worker);
}

# What ends the session ends it.
{
	my $worker = $gate->worker;
	my $session = $gate->session;
	$session->start('BEGIN');
	$gate->await_queued($session);
	$gate->value('SELECT pg_terminate_backend(' . $session->pid . ')');
	is($session->sqlstate, '57P01', 'a termination ends a session that waits at BEGIN');
	$gate->stop_worker($worker);
}

# psql, which goes on after errors
{
	my $worker = $gate->worker;
	$gate->node->psql(
		'postgres',
		"SET admission_gate.queue_timeout = '50ms';\nBEGIN;\nUPDATE t SET v = 1 WHERE id = 1;\nUPDATE t SET v = 1 WHERE id = 2;\nROLLBACK;",
		on_error_stop => 0,
		on_error_die => 0,
		stdout => \my $out,
		stderr => \my $err);
	like($err, qr/canceling statement due to admission queue timeout/, 'psql is told');
	is(table(), '0', 'and commits nothing');
	$gate->stop_worker($worker);
}
$gate->ok_quiet('at the end');
$gate->ok_adds_up('at the end');

$gate->node->stop;

done_testing();
