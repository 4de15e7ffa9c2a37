// What test/drivers/drivers.pl has node-postgres do: see there for the commands and answers.

'use strict'

const readline = require('node:readline')
const pg = require('pg')

const FIRST = 'UPDATE t SET v = v + 1 WHERE id = 1'
const SECOND = 'UPDATE t SET v = v + 1 WHERE id = 2'

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const pools = {}
let client, pipelined, used

async function connect(options) {
  const made = new pg.Client(options)
  made.on('error', () => {})
  await made.connect()
  return made
}

const told = (error) => `${error.code ?? '-'} ${error.constructor.name}`

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

async function pipeline(...texts) {
  used = pipelined ??= await connect({ pipeline: true })
  return outcomes(texts.map((text) => pipelined.query(text)))
}

const commands = {
  sql: async (text) => `00000 ${(await client.query(text)).rowCount}`,
  transaction: () => transaction(client),
  pipeline: () => pipeline(FIRST, SECOND, FIRST),
  timeout: () => outcomes([client.query({ text: FIRST, query_timeout: 2000 })]),
  timeout_of_transaction: () => outcomes([client.query({ text: 'BEGIN', query_timeout: 2000 })]),
  usable: async () => ((await transaction(used)) === '00000' ? 'yes' : 'no'),

  async heedless() {
    await client.query('BEGIN')
    const answers = []
    for (const text of [FIRST, SECOND, 'COMMIT']) answers.push(await outcomes([client.query(text)]))
    return answers.join(', ')
  },

  async cancel() {
    const query = new pg.Query(FIRST)
    const ended = new Promise((resolve) => {
      query.on('end', () => resolve('00000'))
      query.on('error', (error) => resolve(told(error)))
    })
    client.query(query)
    await lines.next()
    new pg.Client().cancel(client, query)
    return ended
  },

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
}

async function main() {
  client = await connect()
  console.log(require('pg/package.json').version)
  for await (const line of lines) {
    const [command, rest] = line.split(/ (.*)/s)
    if (command !== 'usable') used = client
    console.log(await commands[command](rest).catch(told))
  }
  process.exit()
}

main()
