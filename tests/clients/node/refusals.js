// Refusals by per-partition rate limits: each reaches the application as one error, and the driver does not send the request again.
"use strict";

const assert = require("assert");
const { responseErrorCodes } = require("cassandra-driver").types;

const KINDS = ["read", "write"];
const STATEMENTS = [(table, pk) => `SELECT v FROM ${table} WHERE pk = ${pk}`, (table, pk) => `INSERT INTO ${table} (pk, v) VALUES (${pk}, 1)`];
const MOST_UNTIL_REFUSED = 1000;

/** The numbers of reads and writes that the nodes have refused. Undefined if the numbers are not known. */
async function refusals(ask) {
  const answer = await ask("refusals?");
  return answer === "no" ? undefined : answer.split(" ").map(Number);
}

async function rate_limits({ client, keyspace, ask }) {
  for (const [table, limit] of [["refusing", 0], ["limited", 1]]) {
    const option = `{'max_reads_per_second': ${limit}, 'max_writes_per_second': ${limit}}`;
    await client.execute(`CREATE TABLE ${table} (pk int PRIMARY KEY, v int) WITH per_partition_rate_limit = ${option}`);
  }
  const seen = await refusals(ask);
  if (!seen) {
    console.log("not run: rate_limits (the node is not ours)");
    return;
  }
  const isRefusal = (kind, table, limit) => (error) => {
    assert.strictEqual(error.code, responseErrorCodes.configError, error.message);
    const reached = `Per-partition rate limit reached for ${KINDS[kind]} in table ${keyspace}.${table}, rejected by `;
    assert(error.message.includes(reached) && error.message.includes(`limit ${limit};`), error.message);
    return true;
  };
  for (const kind of [0, 1]) {
    for (const isIdempotent of [false, true]) {
      for (const prepare of [false, true]) {
        await assert.rejects(client.execute(STATEMENTS[kind]("refusing", 1), [], { prepare, isIdempotent }), isRefusal(kind, "refusing", 0));
        seen[kind]++;
        assert.deepStrictEqual(await refusals(ask), seen, `${KINDS[kind]}, idempotent: ${isIdempotent}, prepared: ${prepare}`);
      }
    }
  }
  const queries = [{ query: STATEMENTS[1]("refusing", 2), params: [] }];
  await assert.rejects(client.batch(queries, { logged: false, isIdempotent: true }), isRefusal(1, "refusing", 0));
  seen[1]++;
  assert.deepStrictEqual(await refusals(ask), seen, "batch");
  for (const kind of [0, 1]) {
    const untilRefused = async () => {
      for (let n = 0; n < MOST_UNTIL_REFUSED; n++) await client.execute(STATEMENTS[kind]("limited", 1));
    };
    await assert.rejects(untilRefused(), isRefusal(kind, "limited", 1));
    seen[kind]++;
    // Another partition, on the same connections.
    await client.execute(STATEMENTS[kind]("limited", 2));
    assert.deepStrictEqual(await refusals(ask), seen, `${KINDS[kind]} until refused`);
  }
}

module.exports = { rate_limits };
