//! Filters that encode texts for other systems.

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose},
};
use sha2::{Digest, Sha256};

use super::{
    Budget,
    arguments::{ArgumentValues, flag},
    eval_error::{EvalResult, other},
    texts::text_of,
    value::Value,
};
use crate::values::hex::push_hex;

/// Accepts a text with padding or without.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// Encodes the bytes of a text in Base64 (RFC 4648); with `urlsafe` by its section 5, without padding.
pub(super) fn b64encode<'v>(
    value: Value<'v>,
    args: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = text_of(value, budget)?;
    let text = value.as_text().unwrap_or_default();
    budget.charge_each(text.len(), 2)?;
    budget.allocate(text.len() / 3 * 4 + 4)?;
    let encoded = match flag(args, 0)? {
        false => general_purpose::STANDARD.encode(text),
        true => general_purpose::URL_SAFE_NO_PAD.encode(text),
    };
    Value::built(&encoded, budget)
}

/// Decodes Base64 of either alphabet, with padding or without.
pub(super) fn b64decode<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = text_of(value, budget)?;
    let text = value.as_text().unwrap_or_default();
    budget.charge_each(text.len(), 4)?;
    budget.allocate(text.len())?;
    let engine = match text.contains(['-', '_']) {
        true => URL_SAFE,
        false => STANDARD,
    };
    let Ok(bytes) = engine.decode(text) else {
        return other("`b64decode` takes Base64, and the text is none");
    };
    match std::str::from_utf8(&bytes) {
        Ok(decoded) => Value::built(decoded, budget),
        Err(_) => other("the decoded bytes are no text in UTF-8: let a service decode them"),
    }
}

/// Returns the SHA-256 of a text, in lower-case hexadecimal digits.
pub(super) fn sha256<'v>(
    value: Value<'v>,
    _: ArgumentValues<'_, 'v>,
    budget: &Budget,
) -> EvalResult<Value<'v>> {
    let value = text_of(value, budget)?;
    let text = value.as_text().unwrap_or_default();
    // A processor without instructions for it takes about ten nanoseconds for a byte, and one block is always hashed.
    budget.charge_each(text.len() + 64, 10)?;
    let mut digits = String::with_capacity(64);
    push_hex(&mut digits, &Sha256::digest(text));
    Value::built(&digits, budget)
}
