# Proves that every place that has a version has the same, released or not, and that the
# library exports no name but those that PostgreSQL calls, and comes without bitcode.
# Needs no server.

use strict;
use warnings;

use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

# The extension's version is the release's without the last number.
my $meta = decode_json(slurp_file('META.json'));
my $provided = $meta->{provides}{admission_gate};
my ($version) = slurp_file('admission_gate.control') =~ /^default_version = '(.*)'$/m;
like($meta->{version}, qr/^\Q$version\E\.\d+$/, 'META.json and the control file agree on the version');
is($provided->{version}, $meta->{version}, 'META.json provides the extension in it');
is($provided->{file}, "sql/admission_gate--$version.sql", 'so does the name of the script');
ok(-f $provided->{$_}, "the $_ that META.json names is there") foreach qw(file docfile);
is((slurp_file('src/compat.h') =~ /\.version = "([^"]+)"/)[0], $version, 'so does src/compat.h');
my ($latest, $date) = slurp_file('CHANGELOG.md') =~ /^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$/m;
is($latest, $meta->{version}, 'so does CHANGELOG.md');
is((slurp_file('packaging/rpm.spec') =~ /^Version: +(\S+)$/m)[0], $meta->{version}, 'so does the RPM spec');
my ($packaged, $distribution) = slurp_file('debian/changelog') =~ /^\S+ \((\S+)-\d+\) (\S+);/;
is($packaged, $meta->{version}, 'so does debian/changelog');

my $unreleased = $date eq 'unreleased';
is($meta->{release_status}, $unreleased ? 'testing' : 'stable', 'META.json says whether it is stable');
is($distribution eq 'UNRELEASED', $unreleased, 'debian/changelog and CHANGELOG.md agree on being released');

# The library
chomp(my $libraries = qx(pg_config --pkglibdir));
ok(!-e "$libraries/bitcode/admission_gate", 'there is nothing for the JIT compiler to inline');

# All libraries of a server share one name space.
SKIP:
{
	skip('nm is missing', 2) unless grep { -x "$_/nm" } split(/:/, $ENV{PATH});
	my @symbols = map { (split)[-1] } qx(nm -D --defined-only '$libraries/admission_gate.so');
	ok(scalar(grep { $_ eq '_PG_init' } @symbols), 'the library exports what PostgreSQL calls');
	my $gate = qr/^(?:admission_gate_worker_main|(?:pg_finfo_)?pg_(?:stat_(?:get_)?)?admission_gate\w*)$/;
	is(join(' ', grep !/$gate|^Pg_magic_func$|^_PG_init$/, @symbols), '', 'and nothing else');
}

done_testing();
