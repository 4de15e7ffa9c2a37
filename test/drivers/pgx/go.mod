// What test/drivers/drivers.pl tests of pgx
module admission_gate/test/drivers/pgx

go 1.25.0

require github.com/jackc/pgx/v5 v5.12.0
