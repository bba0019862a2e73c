//! Every type through prepared statements, as a value of the driver and back: extremes, empty collections, nesting.

use crate::{Error, ensure};
use scylla::client::session::Session;
use scylla::value::{CqlDate, CqlDecimal, CqlDuration, CqlTime, CqlTimestamp, CqlTimeuuid, CqlValue as V, CqlVarint};
use std::str::FromStr;

fn text(s: &str) -> V {
    V::Text(s.into())
}

fn duration(months: i32, days: i32, nanoseconds: i64) -> V {
    V::Duration(CqlDuration { months, days, nanoseconds })
}

/// CQL type and the values to send through a column of it.
fn cases() -> Vec<(&'static str, Vec<V>)> {
    let timeuuid = |s| CqlTimeuuid::from_str(s).expect("a uuid");
    let point = |x, y: Option<&str>| V::UserDefinedType {
        keyspace: crate::KEYSPACE.into(),
        name: "point".into(),
        fields: vec![("x".into(), Some(V::Int(x))), ("y".into(), y.map(text))],
    };
    vec![
        ("ascii", vec![V::Ascii(String::new()), V::Ascii("plain ~".into())]),
        ("text", vec![text(""), text("häßlich 漢字 🦀"), text(&"long ".repeat(20_000))]),
        ("blob", vec![V::Blob(vec![]), V::Blob((0..=255).collect())]),
        ("boolean", vec![V::Boolean(true), V::Boolean(false)]),
        ("tinyint", vec![V::TinyInt(i8::MIN), V::TinyInt(0), V::TinyInt(i8::MAX)]),
        ("smallint", vec![V::SmallInt(i16::MIN), V::SmallInt(i16::MAX)]),
        ("int", vec![V::Int(i32::MIN), V::Int(-1), V::Int(i32::MAX)]),
        ("bigint", vec![V::BigInt(i64::MIN), V::BigInt(i64::MAX)]),
        (
            "varint",
            [vec![0], vec![0xff], vec![0, 0x80], vec![0x12; 40], vec![0x80; 33]]
                .map(|b| V::Varint(CqlVarint::from_signed_bytes_be(b)))
                .into(),
        ),
        (
            "decimal",
            [(vec![1], 0), (vec![0xff; 1], 3), (vec![0x7a; 20], -7), (vec![5], i32::MAX)]
                .map(|(b, scale)| V::Decimal(CqlDecimal::from_signed_be_bytes_and_exponent(b, scale)))
                .into(),
        ),
        ("float", vec![V::Float(f32::MIN), V::Float(-0.0), V::Float(f32::INFINITY)]),
        ("double", vec![V::Double(f64::MAX), V::Double(1e-300), V::Double(f64::NEG_INFINITY)]),
        ("timestamp", vec![V::Timestamp(CqlTimestamp(i64::MIN)), V::Timestamp(CqlTimestamp(1_700_000_000_123))]),
        ("date", vec![V::Date(CqlDate(0)), V::Date(CqlDate(1 << 31)), V::Date(CqlDate(u32::MAX))]),
        ("time", vec![V::Time(CqlTime(0)), V::Time(CqlTime(86_399_999_999_999))]),
        ("duration", vec![duration(0, 0, 0), duration(i32::MAX, 1, 7), duration(-1, -2, -3), duration(1, 2, i64::MAX)]),
        ("uuid", vec![V::Uuid("d2177dd0-eaa2-11de-a572-001b779c76e3".parse().expect("a uuid"))]),
        ("timeuuid", vec![V::Timeuuid(timeuuid("d2177dd0-eaa2-11de-a572-001b779c76e3"))]),
        (
            "inet",
            ["0.0.0.0", "255.1.2.3", "::1", "2001:db8::8a2e:370:7334"]
                .map(|a| V::Inet(a.parse().expect("an ip")))
                .into(),
        ),
        ("list<int>", vec![V::List(vec![V::Int(3), V::Int(1), V::Int(3)])]),
        ("frozen<list<text>>", vec![V::List(vec![]), V::List(vec![text("a"), text("")])]),
        ("set<text>", vec![V::Set(vec![text("a"), text("b")])]),
        ("map<int, text>", vec![V::Map(vec![(V::Int(-1), text("minus")), (V::Int(1), text("one"))])]),
        (
            "map<text, frozen<list<frozen<set<int>>>>>",
            vec![V::Map(vec![(text("k"), V::List(vec![V::Set(vec![V::Int(1), V::Int(2)]), V::Set(vec![])]))])],
        ),
        (
            "tuple<int, text, frozen<list<int>>>",
            vec![
                V::Tuple(vec![Some(V::Int(1)), Some(text("x")), Some(V::List(vec![V::Int(4)]))]),
                V::Tuple(vec![None, None, Some(V::List(vec![]))]),
            ],
        ),
        ("point", vec![point(1, Some("y")), point(2, None)]),
        ("frozen<point>", vec![point(1, Some("y")), point(-5, None)]),
        ("list<frozen<point>>", vec![V::List(vec![point(1, None), point(2, Some("two"))])]),
    ]
}

pub async fn round_trip(session: &Session) -> Result<(), Error> {
    session.query_unpaged("CREATE TYPE point (x int, y text)", ()).await?;
    let mut wrong = vec![];
    for (number, (cql_type, values)) in cases().into_iter().enumerate() {
        let table = format!("type_{number}");
        session.query_unpaged(format!("CREATE TABLE {table} (pk int PRIMARY KEY, v {cql_type})"), ()).await?;
        let insert = session.prepare(format!("INSERT INTO {table} (pk, v) VALUES (?, ?)")).await?;
        let select = session.prepare(format!("SELECT v FROM {table} WHERE pk = ?")).await?;
        for (pk, value) in values.iter().enumerate() {
            session.execute_unpaged(&insert, (pk as i32, value)).await?;
            let result = session.execute_unpaged(&select, (pk as i32,)).await?.into_rows_result()?;
            let (seen,) = result.single_row::<(Option<V>,)>()?;
            if seen.as_ref() != Some(value) {
                wrong.push(format!("{cql_type}: sent {value:?}, got {seen:?}"));
            }
        }
        let missing = session.execute_unpaged(&select, (-1,)).await?.into_rows_result()?.rows_num();
        ensure!(missing == 0, "{cql_type}: {missing} rows for a key that was never written");
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}
