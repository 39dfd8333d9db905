//! The derive of `provost-object`, which documents it.

mod attributes;
mod expand;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Declares an object of JSON: see the documentation of `provost-object`.
#[proc_macro_derive(Object, attributes(field, object))]
pub fn derive_object(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let expanded = expand::object(&input);
    expanded
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}
