// What applications do with cassandra-driver beside plain statements: its mapping module, streams, concurrent execution, profiles, payloads, keyspaces,
// other JavaScript types. Each check takes the application: its client, and `connect(options)` for clients of its own.
"use strict";

const assert = require("assert");
const { Readable } = require("stream");
const cassandra = require("cassandra-driver");

const { types, policies, mapping } = cassandra;
const { q } = mapping;
const prepared = { prepare: true };
const upTo = (n) => [...Array(n).keys()];

/** Objects in and out: the driver writes the statements, by what the node says of the table. */
async function mapped({ client }) {
  await client.execute("CREATE TYPE reading_place (street text, number int)");
  await client.execute(
    "CREATE TABLE mapped_readings (sensor_id int, taken_at int, value double, tag_names set<text>, counts map<text, int>, place frozen<reading_place>, PRIMARY KEY (sensor_id, taken_at)) " +
      "WITH CLUSTERING ORDER BY (taken_at DESC)",
  );
  await client.execute("CREATE TABLE mapped_tallies (sensor_id int PRIMARY KEY, seen counter)");
  const mapper = new mapping.Mapper(client, {
    models: {
      Reading: { tables: ["mapped_readings"], mappings: new mapping.UnderscoreCqlToCamelCaseMappings() },
      Tally: { tables: ["mapped_tallies"], mappings: new mapping.UnderscoreCqlToCamelCaseMappings() },
    },
  });
  const readings = mapper.forModel("Reading");
  const full = { sensorId: 1, takenAt: 0, value: 1.5, tagNames: ["cold", "dry"], counts: { a: 1 }, place: { street: "Main", number: 7 } };
  await readings.insert(full);
  const seen = await readings.get({ sensorId: 1, takenAt: 0 });
  assert.deepStrictEqual({ ...seen, place: { ...seen.place } }, full);
  for (let takenAt = 1; takenAt < 20; takenAt++) await readings.insert({ sensorId: 1, takenAt, value: takenAt }, { ttl: 5000 });
  const times = async (result) => (await result).toArray().map((one) => one.takenAt);
  assert.deepStrictEqual(await times(readings.find({ sensorId: 1, takenAt: q.gte(15) })), [19, 18, 17, 16, 15]);
  assert.deepStrictEqual(await times(readings.find({ sensorId: 1, takenAt: q.and(q.gt(3), q.lte(6)) }, { orderBy: { takenAt: "asc" } })), [4, 5, 6]);
  assert.deepStrictEqual(await times(readings.find({ sensorId: 1, takenAt: q.in_([2, 4]) }, { fields: ["takenAt"], limit: 5 })), [4, 2]);
  assert.strictEqual((await readings.findAll({ fields: ["sensorId"], limit: 12 })).toArray().length, 12);
  await readings.update({ sensorId: 1, takenAt: 0, value: 9, tagNames: q.append(["wet"]), counts: q.append({ b: 2 }) });
  const updated = await readings.get({ sensorId: 1, takenAt: 0 });
  assert.deepStrictEqual([updated.value, updated.tagNames, updated.counts], [9, ["cold", "dry", "wet"], { a: 1, b: 2 }]);
  await mapper.batch([readings.batching.insert({ sensorId: 2, takenAt: 1, value: 1 }), readings.batching.update({ sensorId: 2, takenAt: 2, value: 2 }), readings.batching.remove({ sensorId: 1, takenAt: 19 })]);
  assert.deepStrictEqual(await times(readings.find({ sensorId: 2 })), [2, 1]);
  const newest = readings.mapWithQuery("SELECT * FROM mapped_readings WHERE sensor_id = ? LIMIT 1", (doc) => [doc.sensorId]);
  assert.deepStrictEqual((await newest({ sensorId: 1 })).first().takenAt, 18);
  await readings.remove({ sensorId: 2, takenAt: 2 });
  assert.strictEqual(await readings.get({ sensorId: 2, takenAt: 2 }), null);
  const tallies = mapper.forModel("Tally");
  await tallies.update({ sensorId: 1, seen: q.incr(5) });
  await tallies.update({ sensorId: 1, seen: q.decr(2) });
  assert.strictEqual((await tallies.get({ sensorId: 1 })).seen.toNumber(), 3);
}

/** Rows one by one with callbacks, as streams, a page at a time on demand; many statements from a stream; a large result. */
async function streams({ client }) {
  const rows = 300;
  await client.execute("CREATE TABLE streamed (pk int, ck int, v blob, PRIMARY KEY (pk, ck))");
  const insert = "INSERT INTO streamed (pk, ck, v) VALUES (?, ?, ?)";
  const done = await cassandra.concurrent.executeConcurrent(client, insert, Readable.from(upTo(rows).map((ck) => [1, ck, Buffer.alloc(8)])), { concurrencyLevel: 32 });
  assert.strictEqual(done.totalExecuted, rows);
  const mixed = upTo(20).map((ck) => ({ query: "INSERT INTO streamed (pk, ck) VALUES (?, ?)", params: [2, ck] }));
  assert.strictEqual((await cassandra.concurrent.executeConcurrent(client, mixed, { collectResults: true })).resultItems.length, 20);
  const select = "SELECT ck FROM streamed WHERE pk = ?";
  const called = [];
  await new Promise((resolve, reject) => {
    client.eachRow(select, [1], { ...prepared, autoPage: true, fetchSize: 40 }, (n, row) => called.push(row.ck), (error, result) => (error ? reject(error) : resolve(result)));
  });
  assert.deepStrictEqual(called, upTo(rows));
  const byHand = [];
  let pages = 0;
  await new Promise((resolve, reject) => {
    client.eachRow(select, [1], { ...prepared, fetchSize: 70 }, (n, row) => byHand.push(row.ck), (error, result) => {
      if (error) return reject(error);
      pages++;
      return result.nextPage ? result.nextPage() : resolve();
    });
  });
  assert.deepStrictEqual([byHand, pages], [upTo(rows), 5]);
  const streamed = [];
  await new Promise((resolve, reject) => {
    client
      .stream(select, [1], { ...prepared, autoPage: true, fetchSize: 33 })
      .on("readable", function read() {
        for (let row = this.read(); row; row = this.read()) streamed.push(row.ck);
      })
      .on("end", resolve)
      .on("error", reject);
  });
  assert.deepStrictEqual(streamed, upTo(rows));
  const iterated = [];
  for await (const row of await client.execute(select, [1], { ...prepared, fetchSize: 100 })) iterated.push(row.ck);
  assert.deepStrictEqual(iterated, upTo(rows));
  const megabyte = Buffer.alloc(1 << 20, 7);
  for (const ck of upTo(12)) await client.execute(insert, [3, ck, megabyte], prepared);
  const large = await client.execute("SELECT v FROM streamed WHERE pk = 3");
  let bytes = 0;
  for await (const row of large) bytes += row.v.length;
  assert.strictEqual(bytes, 12 << 20);
}

/** Payloads, warnings, traces, times of writing, profiles, speculative executions, every policy of choosing a node. */
async function extras({ client, connect, third }) {
  await client.execute("CREATE TABLE extras (pk int PRIMARY KEY, v text)");
  const insert = "INSERT INTO extras (pk, v) VALUES (?, ?)";
  // Version 3 of the protocol has no payloads and no warnings.
  const customPayload = third ? undefined : { "application-key": Buffer.from([1, 2, 3]) };
  await client.execute(insert, [1, "x"], { ...prepared, customPayload });
  await client.batch([{ query: insert, params: [2, "y"] }], { ...prepared, customPayload, timestamp: 1234567 });
  assert.strictEqual((await client.execute("SELECT writetime(v) AS w FROM extras WHERE pk = 2")).first().w.toNumber(), 1234567);
  await client.execute("DROP KEYSPACE IF EXISTS node_warned");
  const warned = await client.execute("CREATE KEYSPACE node_warned WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}");
  assert(third || (warned.info.warnings && warned.info.warnings.length > 0), "no warning of the replication factor");
  await client.execute("DROP KEYSPACE node_warned");
  for (const traced of [await client.execute(insert, [3, "z"], { ...prepared, traceQuery: true }), await client.batch([{ query: insert, params: [4, "w"] }], { ...prepared, traceQuery: true })]) {
    const trace = await client.metadata.getTrace(traced.info.traceId);
    assert(trace.events.length > 0 && trace.duration >= 0 && trace.coordinator, "a trace");
  }
  const { loadBalancing } = policies;
  const balancing = [
    new loadBalancing.RoundRobinPolicy(),
    new loadBalancing.DCAwareRoundRobinPolicy("datacenter1"),
    new loadBalancing.TokenAwarePolicy(new loadBalancing.DCAwareRoundRobinPolicy("datacenter1")),
    new loadBalancing.DefaultLoadBalancingPolicy({ localDc: "datacenter1" }),
  ];
  for (const loadBalancingPolicy of balancing) {
    const other = connect({
      policies: {
        loadBalancing: loadBalancingPolicy,
        speculativeExecution: new policies.speculativeExecution.ConstantSpeculativeExecutionPolicy(2, 2),
        timestampGeneration: new policies.timestampGeneration.MonotonicTimestampGenerator(),
      },
      profiles: [new cassandra.ExecutionProfile("strict", { consistency: types.consistencies.localQuorum, readTimeout: 20000, retry: new policies.retry.FallthroughRetryPolicy() })],
      pooling: { coreConnectionsPerHost: { [types.distance.local]: 2 } },
    });
    try {
      await Promise.all(upTo(50).map((pk) => other.execute(insert, [pk, `v${pk}`], { ...prepared, executionProfile: "strict", isIdempotent: true })));
      const seen = await Promise.all(upTo(50).map((pk) => other.execute("SELECT v FROM extras WHERE pk = ?", [pk], { ...prepared, isIdempotent: true })));
      assert.deepStrictEqual(seen.map((result) => result.first().v), upTo(50).map((pk) => `v${pk}`));
    } finally {
      await other.shutdown();
    }
  }
  const named = await client.execute("SELECT v FROM extras WHERE pk = :key", { key: 7 }, prepared);
  assert.strictEqual(named.first().v, "v7");
}

/** USE, a client's keyspace, what the driver says of the schema. */
async function keyspaces({ client, connect, keyspace }) {
  await client.execute("DROP KEYSPACE IF EXISTS node_other");
  await client.execute("CREATE KEYSPACE node_other WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}");
  for (const [name, value] of [[keyspace, "first"], ["node_other", "other"]]) {
    await client.execute(`CREATE TABLE ${name}.placed (pk int PRIMARY KEY, v text)`);
    await client.execute(`INSERT INTO ${name}.placed (pk, v) VALUES (1, '${value}')`);
  }
  const other = connect({});
  try {
    const read = async (options) => (await other.execute("SELECT v FROM placed WHERE pk = 1", [], options)).first().v;
    assert.strictEqual(await read(prepared), "first");
    await other.execute("USE node_other");
    assert.deepStrictEqual([other.keyspace, await read({}), await read(prepared)], ["node_other", "other", "other"]);
    await other.execute(`USE ${keyspace}`);
    assert.deepStrictEqual([await read({}), await read(prepared)], ["first", "first"]);
  } finally {
    await other.shutdown();
  }
  const { metadata } = client;
  await client.execute("CREATE TYPE told_type (a int, b frozen<list<text>>)");
  const udt = await metadata.getUdt(keyspace, "told_type");
  assert.deepStrictEqual(udt.fields.map((field) => field.name), ["a", "b"]);
  await metadata.refreshKeyspaces();
  assert(metadata.keyspaces.node_other && metadata.keyspaces.system);
  await client.execute("DROP KEYSPACE node_other");
  assert.strictEqual(await metadata.checkSchemaAgreement(), true);
  assert.strictEqual((await metadata.getTable("system_schema", "columns")).clusteringKeys.length, 2);
  assert.strictEqual(await metadata.getTable(keyspace, "no_such_table"), null);
  assert(client.getReplicas(keyspace, Buffer.from([0, 0, 0, 1])).length === 1);
}

/** The same values as other JavaScript types. */
async function encodings({ client, connect, third }) {
  await client.execute("CREATE TABLE encoded (pk int PRIMARY KEY, big bigint, huge varint, tags set<text>, counts map<int, text>, a int, b text)");
  const other = connect({ encoding: { map: Map, set: Set, useBigIntAsLong: true, useBigIntAsVarint: true, useUndefinedAsUnset: true, copyBuffer: false } });
  try {
    const insert = "INSERT INTO encoded (pk, big, huge, tags, counts, a, b) VALUES (?, ?, ?, ?, ?, ?, ?)";
    const values = [2n ** 62n, -(2n ** 100n), new Set(["a", "b"]), new Map([[1, "one"], [2, "two"]])];
    await other.execute(insert, [1, ...values, 5, "b"], prepared);
    // What is undefined is left unset, from version 4 on.
    await other.execute(insert, [1, ...values, third ? 5 : undefined, null], prepared);
    const row = (await other.execute("SELECT big, huge, tags, counts, a, b FROM encoded WHERE pk = 1", [], prepared)).first();
    assert.deepStrictEqual(row.values(), [...values, 5, null]);
  } finally {
    await other.shutdown();
  }
}

module.exports = { mapped, streams, extras, keyspaces, encodings };
