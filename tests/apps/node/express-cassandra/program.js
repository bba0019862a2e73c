// A shop on express-cassandra: models with a user-defined type, collections and counters, saved while a node is killed.
// Not used here, because Messina has them in a later step only: materialized views, secondary indexes, conditions (IF).
'use strict';

const readline = require('readline');
const ExpressCassandra = require('express-cassandra');

const HOSTS = process.env.HOSTS.split(',');
const DATACENTER = process.env.DATACENTER;
const QUORUM = ExpressCassandra.consistencies.quorum;
const PRODUCTS = 200;
const KEYSPACE = 'express_shop';

function client(migration) {
  return ExpressCassandra.createClient({
    clientOptions: {
      contactPoints: HOSTS,
      localDataCenter: DATACENTER,
      protocolOptions: { port: 9042 },
      keyspace: KEYSPACE,
      queryOptions: { consistency: QUORUM, isIdempotent: true, prepare: true },
      socketOptions: { readTimeout: 30000 },
    },
    ormOptions: {
      defaultReplicationStrategy: { class: 'NetworkTopologyStrategy', [DATACENTER]: 3 },
      migration,
      createKeyspace: true,
      disableTTYConfirmation: true,
      udts: { address: { street: 'text', number: 'int', tags: 'frozen<set<text>>' } },
    },
  });
}

function product(more) {
  return {
    fields: {
      shop: 'text',
      id: 'int',
      name: 'text',
      price: 'double',
      tags: { type: 'set', typeDef: '<text>' },
      stock: { type: 'map', typeDef: '<text, int>' },
      notes: { type: 'list', typeDef: '<text>' },
      at: { type: 'timestamp', default: { $db_function: 'toTimestamp(now())' } },
      origin: { type: 'frozen', typeDef: '<address>' },
      uid: { type: 'uuid', default: { $db_function: 'uuid()' } },
      ...more,
    },
    key: [['shop'], 'id'],
    clustering_order: { id: 'desc' },
    options: { timestamps: { createdAt: 'made', updatedAt: 'changed' }, versions: { key: 'version' } },
  };
}

const VISITS = { fields: { page: 'text', seen: 'counter' }, key: ['page'] };

function assert(truth, why) {
  if (!truth) throw new Error(why);
}

function same(found, expected, what) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
  assert(a === b, `${what}: ${a} instead of ${b}`);
}

let failed = 0;
async function check(name, what) {
  try {
    await what();
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}: ${String(error.message).split(/\n {4}at /)[0]}${error.query ? ` [${error.query}]` : ''}`);
    console.error(error);
  }
}

function one(shop, id) {
  return {
    shop, id, name: `product ${id % 50}`, price: (id % 20) * 1.5, tags: [`t${id % 3}`, 'all'], stock: { here: id, there: 2 * id },
    notes: [`note ${id}`], origin: { street: 'Via Messina', number: id, tags: ['a', 'b'] },
  };
}

// All rows of a shop, page by page.
function byPages(Product, shop, options) {
  const rows = [];
  return new Promise((resolve, reject) => {
    Product.eachRow({ shop }, options, (n, row) => { rows.push(row); }, (error, result) => {
      if (error) reject(error);
      else if (result.nextPage) result.nextPage();
      else resolve(rows);
    });
  });
}

async function main() {
  const lines = readline.createInterface({ input: process.stdin });
  const shop = client('safe');
  let Product;
  let Visits;

  await check('schema', async () => {
    await shop.initAsync();
    Product = shop.loadSchema('Product', product({}));
    Visits = shop.loadSchema('Visits', VISITS);
    same(await Product.syncDBAsync(), true, 'the table was made');
    await Visits.syncDBAsync();
    same(await Product.syncDBAsync(), false, 'the second time nothing changed');
  });

  await check('save', async () => {
    for (let id = 0; id < PRODUCTS; id += 1) await new Product(one('calm', id)).saveAsync();
    same((await Product.findAsync({ shop: 'calm' })).length, PRODUCTS, 'rows');
  });

  await check('find', async () => {
    const found = await Product.findOneAsync({ shop: 'calm', id: 17 });
    same([found.name, found.price, found.stock, found.notes], ['product 17', 25.5, { here: 17, there: 34 }, ['note 17']], 'row');
    same([found.origin.street, found.origin.number, found.origin.tags], ['Via Messina', 17, ['a', 'b']], 'user-defined type');
    const some = await Product.findAsync({ shop: 'calm', id: { $gte: 10, $lt: 15 }, $orderby: { $desc: 'id' }, $limit: 3 }, { raw: true, select: ['id'] });
    same(some.map((row) => row.id), [14, 13, 12], 'a range');
    const byName = await Product.findAsync({ name: 'product 7' }, { raw: true, allow_filtering: true });
    same(byName.map((row) => row.id).sort((a, b) => a - b), [7, 57, 107, 157], 'by name, filtered');
    const inList = await Product.findAsync({ shop: 'calm', id: { $in: [1, 3, 5] } }, { raw: true });
    same(inList.map((row) => row.id), [5, 3, 1], '$in');
    const tagged = await Product.findAsync({ shop: 'calm', tags: { $contains: 't1' } }, { raw: true, allow_filtering: true });
    same(tagged.length, [...Array(PRODUCTS).keys()].filter((id) => id % 3 === 1).length, '$contains');
    const tokens = await Product.findAsync({ shop: { $token: { $gte: '' } } }, { raw: true, select: ['id'] });
    same(tokens.length, PRODUCTS, 'by token');
  });

  await check('update', async () => {
    await Product.updateAsync({ shop: 'calm', id: 3 }, { price: 99.5, tags: { $add: ['new'] }, notes: { $append: ['last'] }, stock: { $add: { far: 1 } } });
    const found = await Product.findOneAsync({ shop: 'calm', id: 3 });
    same([found.price, found.tags, found.notes, found.stock], [99.5, ['all', 'new', 't0'], ['note 3', 'last'], { far: 1, here: 3, there: 6 }], 'collections');
    await Visits.updateAsync({ page: 'home' }, { seen: shop.datatypes.Long.fromInt(5) });
    await Visits.updateAsync({ page: 'home' }, { seen: shop.datatypes.Long.fromInt(-2) });
    same(Number((await Visits.findOneAsync({ page: 'home' })).seen), 3, 'counter');
    await Product.deleteAsync({ shop: 'calm', id: 3 });
    same(await Product.findOneAsync({ shop: 'calm', id: 3 }), undefined, 'deleted');
  });

  await check('streams', async () => {
    let rows = 0;
    await new Promise((resolve, reject) => {
      Product.stream({ shop: 'calm' }, { raw: true, fetchSize: 30 }, (reader) => {
        while (reader.readRow()) rows += 1;
      }, (error) => (error ? reject(error) : resolve()));
    });
    same(rows, PRODUCTS - 1, 'rows of a stream');
    rows = (await byPages(Product, 'calm', { raw: true, fetchSize: 30 })).length;
    same(rows, PRODUCTS - 1, 'rows by pages');
  });

  await check('batches', async () => {
    const queries = [];
    for (let id = 0; id < 10; id += 1) queries.push(new Product(one('batch', id)).save({ return_query: true }));
    queries.push(Product.delete({ shop: 'calm', id: 0 }, { return_query: true }));
    await shop.doBatchAsync(queries);
    same((await Product.findAsync({ shop: 'batch' })).length, 10, 'rows of the batch');
    same(await Product.findOneAsync({ shop: 'calm', id: 0 }), undefined, 'deleted in the batch');
  });

  await check('kill_middle', async () => {
    let back = false;
    lines.on('line', () => { back = true; });
    let id = 0;
    for (; !back || id < 200; id += 1) {
      await new Product(one('storm', id)).saveAsync();
      if (id === 100) console.log('kill?');
      if (id % 10 === 0) same((await Product.findOneAsync({ shop: 'storm', id })).stock.here, id, 'read after write');
    }
    // A fast machine saves more rows than fit into a page.
    const found = await byPages(Product, 'storm', { raw: true, fetchSize: 5000, select: ['id', 'name', 'origin'] });
    same(found.map((row) => row.id), [...Array(id).keys()].reverse(), 'the rows that were saved');
    assert(found.every((row) => row.origin.number === row.id), 'their user-defined types');
  });

  await check('migration', async () => {
    await shop.closeAsync();
    const later = client('alter');
    await later.initAsync();
    const Wider = later.loadSchema('Product', product({ colour: 'text', sizes: { type: 'list', typeDef: '<int>' } }));
    await Wider.syncDBAsync();
    await Wider.updateAsync({ shop: 'batch', id: 1 }, { colour: 'red', sizes: [1, 2] });
    const found = await Wider.findOneAsync({ shop: 'batch', id: 1 });
    same([found.colour, found.sizes, found.name], ['red', [1, 2], 'product 1'], 'the new columns');
    await later.closeAsync();
  });

  process.exit(failed ? 1 : 0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
