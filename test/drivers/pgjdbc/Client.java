// What test/drivers/drivers.pl has pgjdbc do: see there for the commands and answers.

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.postgresql.util.DriverInfo;

public class Client
{
	static final String FIRST = "UPDATE t SET v = v + 1 WHERE id = 1";
	static final String SECOND = "UPDATE t SET v = v + 1 WHERE id = 2";
	static final String URL = "jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/"
		+ System.getenv("PGDATABASE") + "?user=" + System.getenv("PGUSER") + "&prepareThreshold=1";

	static final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
	static final Map<String, HikariDataSource> pools = new HashMap<>();
	static Connection connection;
	static PreparedStatement prepared;

	static void connect() throws SQLException
	{
		connection = DriverManager.getConnection(URL);
		prepared = null;
	}

	static String told(SQLException error)
	{
		return (error.getSQLState() == null ? "-" : error.getSQLState()) + " " + error.getClass().getSimpleName();
	}

	static void run(String sql, int seconds) throws SQLException
	{
		try (Statement statement = connection.createStatement())
		{
			statement.setQueryTimeout(seconds);
			statement.execute(sql);
		}
	}

	static String sql(String text) throws SQLException
	{
		try (Statement statement = connection.createStatement())
		{
			if (!statement.execute(text))
				return "00000 " + statement.getUpdateCount();
			ResultSet rows = statement.getResultSet();
			rows.next();
			return "00000 " + rows.getString(1);
		}
	}

	static String transaction(int seconds) throws SQLException
	{
		String step = "BEGIN";
		try
		{
			connection.setAutoCommit(false);
			step = "first statement";
			run(FIRST, seconds);
			step = "second statement";
			run(SECOND, seconds);
			step = "COMMIT";
			connection.commit();
		}
		catch (SQLException error)
		{
			connection.rollback();
			return told(error) + " at " + step;
		}
		finally
		{
			connection.setAutoCommit(true);
		}
		return "00000";
	}

	// Goes on after errors, as no application should.
	static String heedless() throws SQLException
	{
		List<String> answers = new ArrayList<>();
		connection.setAutoCommit(false);
		for (String text : new String[] {FIRST, SECOND, "COMMIT"})
		{
			try
			{
				if (text.equals("COMMIT"))
					connection.commit();
				else
					run(text, 0);
				answers.add("00000");
			}
			catch (SQLException error)
			{
				answers.add(told(error));
			}
		}
		connection.setAutoCommit(true);
		return String.join(", ", answers);
	}

	// Cancels its statement when there is a further line.
	static String cancel() throws SQLException
	{
		try (Statement statement = connection.createStatement())
		{
			Thread thread = new Thread(() -> {
				try
				{
					lines.readLine();
					statement.cancel();
				}
				catch (IOException | SQLException error)
				{
					error.printStackTrace();
				}
			});
			thread.start();
			statement.execute(FIRST);
			return "00000";
		}
	}

	static String timeout() throws SQLException
	{
		run(FIRST, 2);
		return "00000";
	}

	static String prepared() throws SQLException
	{
		if (prepared == null)
			prepared = connection.prepareStatement("SELECT count(*) FROM t WHERE id = ?");
		prepared.setInt(1, 1);
		try (ResultSet rows = prepared.executeQuery())
		{
			rows.next();
			return "00000 " + rows.getString(1);
		}
	}

	static String pipeline() throws SQLException
	{
		try (Statement statement = connection.createStatement())
		{
			for (String text : new String[] {FIRST, SECOND, FIRST})
				statement.addBatch(text);
			statement.executeBatch();
			return "00000";
		}
	}

	static String pipelineOfTransaction() throws SQLException
	{
		connection.setAutoCommit(false);
		try
		{
			pipeline();
			connection.commit();
			return "00000";
		}
		catch (SQLException error)
		{
			connection.rollback();
			throw error;
		}
		finally
		{
			connection.setAutoCommit(true);
		}
	}

	// Checks a connection out of a pool, and in.
	static String pool(String check) throws SQLException
	{
		HikariDataSource pool = pools.computeIfAbsent(check, name -> {
			HikariConfig config = new HikariConfig();
			config.setJdbcUrl(URL);
			config.setMaximumPoolSize(1);
			config.setConnectionTimeout(10000);
			if (check.equals("query"))
				config.setConnectionTestQuery("SELECT 1");
			return new HikariDataSource(config);
		});
		pool.getConnection().close();
		return "00000";
	}

	// Whether the connection still works.
	static String usable() throws SQLException
	{
		if (!connection.isClosed() && transaction(0).equals("00000"))
			return "yes";
		connect();
		return "no";
	}

	static String answer(String command, String rest)
	{
		try
		{
			switch (command)
			{
				case "sql":
					return sql(rest);
				case "transaction":
					return transaction(0);
				case "heedless":
					return heedless();
				case "cancel":
					return cancel();
				case "timeout":
					return timeout();
				case "timeout_of_transaction":
					return transaction(2);
				case "prepared":
					return prepared();
				case "pipeline":
					return pipeline();
				case "pipeline_of_transaction":
					return pipelineOfTransaction();
				case "pool":
					return pool(rest);
				case "usable":
					return usable();
				default:
					return "unknown command";
			}
		}
		catch (SQLException error)
		{
			return told(error);
		}
	}

	public static void main(String[] arguments) throws IOException, SQLException
	{
		connect();
		System.out.println(DriverInfo.DRIVER_VERSION);
		for (String line = lines.readLine(); line != null; line = lines.readLine())
		{
			String[] words = line.split(" ", 2);
			System.out.println(answer(words[0], words.length > 1 ? words[1] : ""));
		}
		System.exit(0);
	}
}
