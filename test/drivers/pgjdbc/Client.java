// What test/drivers/drivers.pl has pgjdbc do: see there for the commands and answers.

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.sql.*;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.postgresql.util.DriverInfo;

public class Client {
    static final String FIRST = "UPDATE t SET v = v + 1 WHERE id = 1";
    static final String SECOND = "UPDATE t SET v = v + 1 WHERE id = 2";
    static final String URL = String.format("jdbc:postgresql://%s:%s/%s?user=%s",
        System.getenv("PGHOST"), System.getenv("PGPORT"), System.getenv("PGDATABASE"), System.getenv("PGUSER"));

    static final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    static final Map<String, HikariDataSource> pools = new HashMap<>();
    static Connection connection;

    static String told(SQLException error) {
        return (error.getSQLState() == null ? "-" : error.getSQLState()) + " " + error.getClass().getSimpleName();
    }

    // Within a time-out, if seconds are not 0
    static String sql(String text, int seconds) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.setQueryTimeout(seconds);
            statement.execute(text);
            return "00000 " + statement.getUpdateCount();
        }
    }

    static String transaction(int seconds) throws SQLException {
        String step = "BEGIN";
        connection.setAutoCommit(false);
        try {
            step = "first statement";
            sql(FIRST, seconds);
            step = "second statement";
            sql(SECOND, seconds);
            step = "COMMIT";
            connection.commit();
            return "00000";
        } catch (SQLException error) {
            connection.rollback();
            return told(error) + " at " + step;
        } finally {
            connection.setAutoCommit(true);
        }
    }

    static String heedless() throws SQLException {
        List<String> answers = new ArrayList<>();
        connection.setAutoCommit(false);
        for (String text : new String[] {FIRST, SECOND, "COMMIT"}) {
            try {
                if (text.equals("COMMIT"))
                    connection.commit();
                else
                    sql(text, 0);
                answers.add("00000");
            } catch (SQLException error) {
                answers.add(told(error));
            }
        }
        connection.setAutoCommit(true);
        return String.join(", ", answers);
    }

    static String cancel() throws SQLException {
        try (Statement statement = connection.createStatement()) {
            new Thread(() -> {
                try {
                    lines.readLine();
                    statement.cancel();
                } catch (IOException | SQLException error) {
                    error.printStackTrace();
                }
            }).start();
            statement.execute(FIRST);
            return "00000";
        }
    }

    static String pipeline() throws SQLException {
        try (Statement statement = connection.createStatement()) {
            for (String text : new String[] {FIRST, SECOND, FIRST})
                statement.addBatch(text);
            statement.executeBatch();
            return "00000";
        }
    }

    static String pool(String check) throws SQLException {
        pools.computeIfAbsent(check, name -> {
            HikariConfig config = new HikariConfig();
            config.setJdbcUrl(URL);
            config.setMaximumPoolSize(1);
            config.setConnectionTimeout(10000);
            if (check.equals("query"))
                config.setConnectionTestQuery("SELECT 1");
            return new HikariDataSource(config);
        }).getConnection().close();
        return "00000";
    }

    static String usable() throws SQLException {
        return transaction(0).equals("00000") ? "yes" : "no";
    }

    static String answer(String command, String rest) throws SQLException {
        return switch (command) {
            case "sql" -> sql(rest, 0);
            case "transaction" -> transaction(0);
            case "heedless" -> heedless();
            case "cancel" -> cancel();
            case "timeout" -> sql(FIRST, 2);
            case "timeout_of_transaction" -> transaction(2);
            case "pipeline" -> pipeline();
            case "pool" -> pool(rest);
            case "usable" -> usable();
            default -> "unknown command";
        };
    }

    public static void main(String[] arguments) throws IOException, SQLException {
        connection = DriverManager.getConnection(URL);
        System.out.println(DriverInfo.DRIVER_VERSION);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 2);
            try {
                System.out.println(answer(words[0], words.length > 1 ? words[1] : ""));
            } catch (SQLException error) {
                System.out.println(told(error));
            }
        }
        System.exit(0);
    }
}
