// What test/drivers/drivers.pl has node-postgres do: see there for the commands and answers.

'use strict'

const readline = require('node:readline')
const pg = require('pg')

const FIRST = 'UPDATE t SET v = v + 1 WHERE id = 1'
const SECOND = 'UPDATE t SET v = v + 1 WHERE id = 2'

const pools = {}
let client, pipelined, used

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()

async function nextLine() {
  const { value, done } = await lines.next()
  return done ? null : value
}

async function connect(options) {
  const made = new pg.Client(options)
  made.on('error', () => {})
  await made.connect()
  return made
}

function told(error) {
  return `${error.code ?? '-'} ${error.constructor.name}`
}

async function value(client, query) {
  const result = await client.query(query)
  return `00000 ${result.rows.length ? Object.values(result.rows[0])[0] : result.rowCount}`
}

async function transaction(client) {
  let step = 'BEGIN'
  try {
    await client.query('BEGIN')
    step = 'first statement'
    await client.query(FIRST)
    step = 'second statement'
    await client.query(SECOND)
    step = 'COMMIT'
    await client.query('COMMIT')
  } catch (error) {
    await client.query('ROLLBACK')
    return `${told(error)} at ${step}`
  }
  return '00000'
}

async function outcomes(promises) {
  const results = await Promise.allSettled(promises)
  return results.map(({ reason, value }) => (reason ? told(reason) : `00000 ${value.command}`)).join(', ')
}

const commands = {
  sql: (text) => value(client, text),

  transaction: () => transaction(client),

  // Goes on after errors, as no application should.
  async heedless() {
    await client.query('BEGIN')
    const answers = []
    for (const text of [FIRST, SECOND, 'COMMIT']) answers.push(await outcomes([client.query(text)]))
    return answers.join(', ')
  },

  // Cancels its statement when there is a further line.
  async cancel() {
    const query = new pg.Query(FIRST)
    const ended = new Promise((resolve) => {
      query.on('end', () => resolve('00000'))
      query.on('error', (error) => resolve(told(error)))
    })
    client.query(query)
    await nextLine()
    new pg.Client().cancel(client, query)
    return ended
  },

  async timeout() {
    await client.query({ text: FIRST, query_timeout: 2000 })
    return '00000'
  },

  async timeout_of_transaction() {
    await client.query({ text: 'BEGIN', query_timeout: 2000 })
    return '00000'
  },

  prepared: () => value(client, { name: 'counted', text: 'SELECT count(*) FROM t WHERE id = $1', values: [1] }),

  async pipeline() {
    used = pipelined ??= await connect({ pipeline: true })
    return outcomes([FIRST, SECOND, FIRST].map((text) => pipelined.query(text)))
  },

  async pipeline_of_transaction() {
    used = pipelined ??= await connect({ pipeline: true })
    return outcomes(['BEGIN', FIRST, SECOND, 'COMMIT'].map((text) => pipelined.query(text)))
  },

  // Checks a connection out of a pool, and in.
  async pool(check) {
    const pool = (pools[check] ??= new pg.Pool({ max: 1, idleTimeoutMillis: 0 }))
    const pooled = await pool.connect()
    try {
      if (check === 'query') await pooled.query('SELECT 1')
    } finally {
      pooled.release()
    }
    return '00000'
  },

  // Whether the connection that was used last still works.
  async usable() {
    return (await transaction(used)) === '00000' ? 'yes' : 'no'
  },
}

async function main() {
  client = await connect()
  console.log(require('pg/package.json').version)
  for (let line = await nextLine(); line !== null; line = await nextLine()) {
    const [command, rest] = line.split(/ (.*)/s)
    if (command !== 'usable') used = client
    try {
      console.log(await commands[command](rest))
    } catch (error) {
      console.log(told(error))
    }
  }
  process.exit()
}

main()
