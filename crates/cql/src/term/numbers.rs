//! The number types.

use model::CqlType;

/// Whether a type is a number type.
pub fn is_number(ty: &CqlType) -> bool {
    use CqlType::*;
    matches!(ty, Tinyint | Smallint | Int | Bigint | Counter | Varint | Decimal | Float | Double)
}

/// The types for which functions of numbers have variants.
pub const NUMBERS: [CqlType; 8] = [
    CqlType::Tinyint,
    CqlType::Smallint,
    CqlType::Int,
    CqlType::Bigint,
    CqlType::Float,
    CqlType::Double,
    CqlType::Varint,
    CqlType::Decimal,
];
