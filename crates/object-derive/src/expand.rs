//! Makes the implementations of a declaration.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Data, DataEnum, DeriveInput, Expr, Field, Fields, Ident, LitStr, Result, Type, Variant,
    ext::IdentExt,
};

use crate::attributes::{
    Absent, FieldRules, ObjectRules, about, at, bounds, default_within, everywhere, field_rules,
    object_rules, span, text_of,
};

pub fn object(input: &DeriveInput) -> Result<TokenStream> {
    let rules = object_rules(&input.attrs)?;
    let declaration = Declaration {
        ident: &input.ident,
        name: match &rules.name {
            Some(name) => name.value(),
            None => input.ident.to_string(),
        },
        about: about(&input.attrs),
        rules,
    };
    if let Some(parameter) = input.generics.params.first() {
        let message = "an object has no parameters";
        return Err(syn::Error::new_spanned(parameter, message));
    }
    match &input.data {
        Data::Struct(data) => declaration.of_struct(&data.fields),
        Data::Enum(data) if data.variants.iter().all(|one| one.fields.is_empty()) => {
            declaration.of_words(data)
        }
        Data::Enum(data) => declaration.of_choice(data),
        Data::Union(_) => Err(at(&input.ident, "a union cannot be an object")),
    }
}

struct Declaration<'d> {
    ident: &'d Ident,
    name: String,
    about: String,
    rules: ObjectRules,
}

/// A field of a struct.
struct ObjectField<'d> {
    ident: &'d Ident,
    ty: &'d Type,
    /// In JSON.
    name: String,
    about: String,
    rules: FieldRules,
}

impl<'d> ObjectField<'d> {
    fn new(field: &'d Field) -> Result<Self> {
        let Some(ident) = &field.ident else {
            let message = "a field of an object needs a name";
            return Err(syn::Error::new_spanned(field, message));
        };
        let rules = field_rules(&field.attrs)?;
        let member = Self {
            ident,
            ty: &field.ty,
            name: match &rules.rename {
                Some(name) => name.value(),
                None => ident.unraw().to_string(),
            },
            about: about(&field.attrs),
            rules,
        };
        member.refuse_contradictions()?;
        Ok(member)
    }

    fn refuse_contradictions(&self) -> Result<()> {
        let rules = &self.rules;
        match &rules.absent {
            None if !self.may_be_left_out() => {
                let message = format!(
                    "`{}` needs `default`, `default = …`, or `required = \"…\"` with a remedy",
                    self.name
                );
                return Err(at(self.ident, message));
            }
            Some(Absent::Default(default)) => {
                if let Some(range) = &rules.bounds {
                    default_within(default, range)?;
                }
            }
            Some(Absent::Required(_)) if rules.omits_default => {
                return Err(at(self.ident, "a required field has no default to omit"));
            }
            _ => {}
        }
        if rules.is_late && rules.bounds.is_none() && rules.check.is_none() {
            return Err(at(self.ident, "`late` needs bounds or a `check`"));
        }
        Ok(())
    }

    fn is(&self, names: &[&str]) -> bool {
        last_segment(self.ty).is_some_and(|last| names.contains(&last.as_str()))
    }

    /// By its type alone.
    fn may_be_left_out(&self) -> bool {
        self.is(&["Option", "Vec", "BTreeMap"])
    }

    fn is_required(&self) -> bool {
        matches!(self.rules.absent, Some(Absent::Required(_)))
    }

    fn default_name(&self) -> Ident {
        format_ident!("default_{}", self.ident.unraw())
    }

    /// A function that makes what stands for a field that is left out.
    fn default_function(&self) -> Result<TokenStream> {
        if self.is_required() {
            return Ok(TokenStream::new());
        }
        let (name, ty) = (self.default_name(), self.ty);
        let value = match &self.rules.absent {
            Some(Absent::Default(default)) => self.literal(default)?,
            _ => quote!(::core::default::Default::default()),
        };
        Ok(quote! {
            fn #name() -> #ty {
                #value
            }
        })
    }

    fn literal(&self, default: &Expr) -> Result<TokenStream> {
        match text_of(default) {
            Some(text) if self.is(&["Span"]) => span(text),
            Some(text) => Ok(quote!(#text.to_owned())),
            None => Ok(quote!(#default)),
        }
    }

    /// Reads the field into a variable of its name.
    fn read(&self) -> Result<TokenStream> {
        let (ident, ty, name) = (self.ident, self.ty, &self.name);
        let bounds = match self.rules.is_late {
            true => bounds(None)?,
            false => bounds(self.rules.bounds.as_ref())?,
        };
        let read = match (&self.rules.read, &self.rules.absent) {
            (Some(read), _) => quote!(#read(fields, #name)),
            (None, Some(Absent::Required(remedy))) => {
                quote!(fields.required::<#ty>(#name, #remedy, &#bounds))
            }
            (None, _) => quote!(fields.take::<#ty>(#name, &#bounds)),
        };
        Ok(quote!(let #ident: ::core::option::Option<#ty> = #read;))
    }

    fn found(&self) -> TokenStream {
        let (ident, default) = (self.ident, self.default_name());
        match self.is_required() {
            true => quote!(#ident: #ident?),
            false => quote!(#ident: #ident.unwrap_or_else(#default)),
        }
    }

    fn check(&self) -> Result<TokenStream> {
        let (ident, name) = (self.ident, &self.name);
        let check = match &self.rules.check {
            Some(check) if self.is(&["Option"]) => quote! {
                if let ::core::option::Option::Some(value) = &self.#ident {
                    #check(value, faults);
                }
            },
            Some(check) => quote!(#check(&self.#ident, faults);),
            None => {
                let bounds = bounds(self.rules.bounds.as_ref())?;
                match &self.rules.items {
                    Some(items) => quote! {
                        ::provost_object::check_items(&self.#ident, &#bounds, #items, faults);
                    },
                    None => quote! {
                        ::provost_object::FieldValue::check(&self.#ident, &#bounds, faults);
                    },
                }
            }
        };
        Ok(quote!(faults.part(#name, |faults| { #check });))
    }

    fn write(&self) -> TokenStream {
        let (ident, name, default) = (self.ident, &self.name, self.default_name());
        let write = quote! {
            ::provost_object::serde::ser::SerializeStruct::serialize_field(&mut object, #name, &self.#ident)?;
        };
        let condition = match (&self.rules.written_if, &self.rules.absent) {
            (Some(condition), _) => quote!(#condition(self)),
            (None, _) if self.rules.omits_default => quote!(self.#ident != #default()),
            (None, Some(Absent::Default(_) | Absent::Required(_))) => return write,
            (None, _) => quote!(!::provost_object::FieldValue::is_absent(&self.#ident)),
        };
        quote!(if #condition { #write })
    }

    /// For serde, which reads the configuration and the records.
    fn shadow(&self) -> TokenStream {
        let (ident, ty, name) = (self.ident, self.ty, &self.name);
        let default = self.default_name().to_string();
        let default = match self.is_required() {
            true => quote!(),
            false => quote!(, default = #default),
        };
        quote! {
            #[serde(rename = #name #default)]
            #ident: #ty
        }
    }

    fn property(&self) -> Result<TokenStream> {
        let Self {
            ty, name, about, ..
        } = self;
        let bounds = bounds(self.rules.bounds.as_ref())?;
        let json = quote!(::provost_object::serde_json);
        let default = match &self.rules.absent {
            Some(Absent::Default(_)) => {
                let default = self.default_name();
                quote!(#json::to_value(#default()).ok())
            }
            _ => quote!(::core::option::Option::None),
        };
        let example = optional(
            self.rules
                .example
                .as_ref()
                .map(|json_of| quote!(#json::json!(#json_of))),
        );
        let pattern = optional(self.rules.pattern.as_ref().map(|pattern| quote!(#pattern)));
        let is_required = self.is_required();
        Ok(quote! {
            ::provost_object::Property {
                name: #name,
                about: #about,
                schema: <#ty as ::provost_object::FieldValue>::schema(&#bounds, definitions),
                form: <#ty as ::provost_object::FieldValue>::form(&#bounds),
                default: #default,
                is_required: #is_required,
                example: #example,
                pattern: #pattern,
            }
        })
    }
}

fn optional(value: Option<TokenStream>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

fn last_segment(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
}

/// Collects the errors of all fields, so that each is shown at its own.
fn all<T, R>(
    items: impl IntoIterator<Item = T>,
    make: impl FnMut(T) -> Result<R>,
) -> Result<Vec<R>> {
    let (mut made, mut wrong) = (Vec::new(), None::<syn::Error>);
    for one in items.into_iter().map(make) {
        match (one, &mut wrong) {
            (Ok(one), _) => made.push(one),
            (Err(error), Some(wrong)) => wrong.combine(error),
            (Err(error), None) => wrong = Some(error),
        }
    }
    match wrong {
        None => Ok(made),
        Some(error) => Err(error),
    }
}

impl Declaration<'_> {
    fn of_struct(&self, fields: &Fields) -> Result<TokenStream> {
        let members = all(fields, ObjectField::new)?;
        if members.is_empty() {
            return Err(at(self.ident, "an object needs fields"));
        }
        let defaults = all(&members, ObjectField::default_function)?;
        let reads = all(&members, ObjectField::read)?;
        let checks = all(&members, ObjectField::check)?;
        let properties = all(&members, ObjectField::property)?;
        let found = members.iter().map(ObjectField::found);
        let before = self.rules.before.iter();
        let check = self.rules.check.iter();
        let object = self.object(
            &quote!(),
            &quote! {
                fn read_fields(
                    fields: &mut ::provost_object::Fields<'_>,
                ) -> ::core::option::Option<Self> {
                    #(#before(fields);)*
                    #(#reads)*
                    ::core::option::Option::Some(Self { #(#found),* })
                }

                fn check_fields(&self, faults: &mut ::provost_object::Faults) {
                    #(#checks)*
                    #(#check(self, faults);)*
                }

                fn properties(
                    definitions: &mut ::provost_object::Definitions,
                ) -> ::std::vec::Vec<::provost_object::Property> {
                    ::std::vec![#(#properties),*]
                }
            },
        );
        let default = self.default(&members)?;
        let serialize = self.serialize_struct(&members);
        let shadows = members.iter().map(ObjectField::shadow);
        let deserialize = self.deserialize(
            &quote!(deny_unknown_fields),
            &quote! {
                struct Shadow { #(#shadows),* }
            },
        );
        Ok(quote! {
            #[automatically_derived]
            const _: () = {
                #(#defaults)*
                #object
                #default
                #serialize
                #deserialize
            };
        })
    }

    fn object(&self, more: &TokenStream, functions: &TokenStream) -> TokenStream {
        let Self {
            ident, name, about, ..
        } = self;
        let form = format!("[{name}](#{})", name.to_lowercase());
        quote! {
            impl ::provost_object::Object for #ident {
                const NAME: &'static str = #name;
                const ABOUT: &'static str = #about;
                #more
                #functions
            }

            impl ::provost_object::FieldValue for #ident {
                type Bound = ();

                fn read(
                    value: &::provost_object::serde_json::value::RawValue,
                    place: ::provost_object::Place<'_>,
                    _: &::provost_object::Bounds<()>,
                ) -> ::core::result::Result<Self, ::provost_object::Unfit> {
                    <Self as ::provost_object::Object>::read_object(value, &place.to_string())
                        .map_err(::provost_object::Unfit::Parts)
                }

                fn check(&self, _: &::provost_object::Bounds<()>, faults: &mut ::provost_object::Faults) {
                    ::provost_object::Object::check_fields(self, faults);
                }

                fn schema(
                    _: &::provost_object::Bounds<()>,
                    definitions: &mut ::provost_object::Definitions,
                ) -> ::provost_object::serde_json::Value {
                    definitions.object::<Self>()
                }

                fn form(_: &::provost_object::Bounds<()>) -> ::std::string::String {
                    #form.to_owned()
                }
            }
        }
    }

    fn default(&self, members: &[ObjectField<'_>]) -> Result<TokenStream> {
        if !self.rules.has_default {
            return Ok(TokenStream::new());
        }
        let fields = all(members, |member| match member.is_required() {
            true => Err(at(
                member.ident,
                "an object with a required field has no default",
            )),
            false => {
                let (ident, default) = (member.ident, member.default_name());
                Ok(quote!(#ident: #default()))
            }
        })?;
        let ident = self.ident;
        Ok(quote! {
            impl ::core::default::Default for #ident {
                fn default() -> Self {
                    Self { #(#fields),* }
                }
            }
        })
    }

    fn serialize_struct(&self, members: &[ObjectField<'_>]) -> TokenStream {
        let (ident, count) = (self.ident, members.len());
        let name = ident.to_string();
        let writes = members.iter().map(ObjectField::write);
        quote! {
            impl ::provost_object::serde::Serialize for #ident {
                fn serialize<S: ::provost_object::serde::Serializer>(
                    &self,
                    serializer: S,
                ) -> ::core::result::Result<S::Ok, S::Error> {
                    // Never zero: JSON would have ended then. Fewer may follow.
                    let mut object = serializer.serialize_struct(#name, #count)?;
                    #(#writes)*
                    ::provost_object::serde::ser::SerializeStruct::end(object)
                }
            }
        }
    }

    /// Lets serde read the type through another one that has its attributes.
    fn deserialize(&self, attributes: &TokenStream, shadow: &TokenStream) -> TokenStream {
        let ident = self.ident;
        let name = ident.to_string();
        quote! {
            #[derive(::provost_object::serde::Deserialize)]
            #[serde(crate = "::provost_object::serde", remote = #name, rename = #name, #attributes)]
            #shadow

            impl<'de> ::provost_object::serde::Deserialize<'de> for #ident {
                fn deserialize<D: ::provost_object::serde::Deserializer<'de>>(
                    deserializer: D,
                ) -> ::core::result::Result<Self, D::Error> {
                    Shadow::deserialize(deserializer)
                }
            }
        }
    }

    /// Words that stand for something.
    fn of_words(&self, data: &DataEnum) -> Result<TokenStream> {
        let words = all(&data.variants, |variant| {
            Ok((&variant.ident, word(variant, &field_rules(&variant.attrs)?)))
        })?;
        if words.is_empty() {
            return Err(everywhere("there must be words"));
        }
        let Self {
            ident, name, about, ..
        } = self;
        let variants: Vec<_> = words.iter().map(|(variant, _)| variant).collect();
        let texts: Vec<_> = words.iter().map(|(_, word)| word).collect();
        let form: Vec<_> = texts.iter().map(|word| format!("`{word}`")).collect();
        let form = form.join(" or ");
        let type_name = ident.to_string();
        let positions = 0..u32::try_from(words.len()).unwrap_or(u32::MAX);
        let deserialize = self.deserialize(
            &quote!(),
            &quote! {
                enum Shadow { #(#[serde(rename = #texts)] #variants),* }
            },
        );
        Ok(quote! {
            impl #ident {
                pub const ALL: &'static [Self] = &[#(Self::#variants),*];

                pub const fn as_str(self) -> &'static str {
                    match self {
                        #(Self::#variants => #texts,)*
                    }
                }
            }

            #[automatically_derived]
            const _: () = {
                impl ::provost_object::FieldValue for #ident {
                    type Bound = ();

                    fn read(
                        value: &::provost_object::serde_json::value::RawValue,
                        _: ::provost_object::Place<'_>,
                        _: &::provost_object::Bounds<()>,
                    ) -> ::core::result::Result<Self, ::provost_object::Unfit> {
                        ::provost_object::read_word(value, &[#((#texts, Self::#variants)),*])
                    }

                    fn schema(
                        _: &::provost_object::Bounds<()>,
                        definitions: &mut ::provost_object::Definitions,
                    ) -> ::provost_object::serde_json::Value {
                        definitions.words(#name, #about, &[#(#texts),*])
                    }

                    fn form(_: &::provost_object::Bounds<()>) -> ::std::string::String {
                        #form.to_owned()
                    }
                }

                impl ::provost_object::serde::Serialize for #ident {
                    fn serialize<S: ::provost_object::serde::Serializer>(
                        &self,
                        serializer: S,
                    ) -> ::core::result::Result<S::Ok, S::Error> {
                        match self {
                            #(Self::#variants => serializer.serialize_unit_variant(#type_name, #positions, #texts),)*
                        }
                    }
                }

                #deserialize
            };
        })
    }

    /// An object with exactly one of several fields.
    fn of_choice(&self, data: &DataEnum) -> Result<TokenStream> {
        let choices = all(&data.variants, |variant| {
            let rules = field_rules(&variant.attrs)?;
            match &variant.fields {
                Fields::Unnamed(fields) if fields.unnamed.len() == 1 => Ok((
                    &variant.ident,
                    word(variant, &rules),
                    about(&variant.attrs),
                    &fields.unnamed[0].ty,
                )),
                _ => Err(at(
                    &variant.ident,
                    "each variant holds one object, or none holds any",
                )),
            }
        })?;
        let ident = self.ident;
        let type_name = ident.to_string();
        let variants: Vec<_> = choices.iter().map(|(variant, ..)| variant).collect();
        let names: Vec<_> = choices.iter().map(|(_, name, ..)| name).collect();
        let abouts: Vec<_> = choices.iter().map(|(_, _, about, _)| about).collect();
        let types: Vec<_> = choices.iter().map(|(.., ty)| ty).collect();
        let positions: Vec<_> = (0..choices.len()).collect();
        let numbers = 0..u32::try_from(choices.len()).unwrap_or(u32::MAX);
        let object = self.object(&quote!(const HAS_ONE_FIELD: bool = true;), &quote! {
            fn read_fields(
                fields: &mut ::provost_object::Fields<'_>,
            ) -> ::core::option::Option<Self> {
                let names = [#(#names),*];
                let only = fields.only_one(&names)?;
                let mut found = ::core::option::Option::None;
                for (at, name) in names.into_iter().enumerate() {
                    match at {
                        // Null stands for a field that is left out.
                        _ if at != only => drop(fields.value(name)),
                        #(#positions => {
                            found = fields
                                .take::<#types>(name, &::provost_object::Bounds::ANY)
                                .map(Self::#variants);
                        })*
                        _ => {}
                    }
                }
                found
            }

            fn check_fields(&self, faults: &mut ::provost_object::Faults) {
                match self {
                    #(Self::#variants(one) => faults.part(#names, |faults| {
                        ::provost_object::FieldValue::check(one, &::provost_object::Bounds::ANY, faults);
                    }),)*
                }
            }

            fn properties(
                definitions: &mut ::provost_object::Definitions,
            ) -> ::std::vec::Vec<::provost_object::Property> {
                ::std::vec![#(::provost_object::Property {
                    name: #names,
                    about: #abouts,
                    schema: <#types as ::provost_object::FieldValue>::schema(&::provost_object::Bounds::ANY, definitions),
                    form: <#types as ::provost_object::FieldValue>::form(&::provost_object::Bounds::ANY),
                    default: ::core::option::Option::None,
                    is_required: false,
                    example: ::core::option::Option::None,
                    pattern: ::core::option::Option::None,
                }),*]
            }
        });
        let deserialize = self.deserialize(
            &quote!(),
            &quote! {
                enum Shadow { #(#[serde(rename = #names)] #variants(#types)),* }
            },
        );
        Ok(quote! {
            #[automatically_derived]
            const _: () = {
                #object

                impl ::provost_object::serde::Serialize for #ident {
                    fn serialize<S: ::provost_object::serde::Serializer>(
                        &self,
                        serializer: S,
                    ) -> ::core::result::Result<S::Ok, S::Error> {
                        match self {
                            #(Self::#variants(one) => serializer.serialize_newtype_variant(#type_name, #numbers, #names, one),)*
                        }
                    }
                }

                #deserialize
            };
        })
    }
}

/// The name of a variant in JSON: in snake case where it says no other.
fn word(variant: &Variant, rules: &FieldRules) -> String {
    if let Some(word) = rules.rename.as_ref().map(LitStr::value) {
        return word;
    }
    let mut word = String::new();
    for c in variant.ident.unraw().to_string().chars() {
        if c.is_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.extend(c.to_lowercase());
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(declaration: &str) -> String {
        let input = syn::parse_str(declaration).unwrap();
        match object(&input) {
            Ok(_) => panic!("{declaration} was taken"),
            Err(error) => {
                let all: Vec<_> = error.into_iter().map(|one| one.to_string()).collect();
                all.join("; ")
            }
        }
    }

    #[test]
    fn what_a_field_cannot_say_is_refused_and_all_of_it_at_once() {
        for (declaration, message) in [
            (
                "struct A { #[field(1..=7)] a: u32, b: bool }",
                "`a` needs `default`, `default = …`, or `required = \"…\"` with a remedy; `b` needs",
            ),
            (
                "struct A { #[field(1..=7, default = 8)] a: u32 }",
                "this default is outside the bounds of the field",
            ),
            (
                "struct A { #[field(\"1s\"..=\"1h\", default = \"500ms\")] a: Span }",
                "this default is outside the bounds of the field",
            ),
            (
                "struct A { #[field(\"1s\"..=\"1 hour\")] a: Option<Span> }",
                "must be a duration such as",
            ),
            (
                "struct A { #[field(defualt = 3)] a: u32 }",
                "`defualt` is none of: a range, default,",
            ),
            (
                "struct A { #[field(7)] a: u32 }",
                "this is no range; a field has:",
            ),
            (
                "struct A { #[field(late)] a: Option<u32> }",
                "`late` needs bounds or a `check`",
            ),
            (
                "#[object(default)] struct A { #[field(required = \"give it\")] a: u32 }",
                "an object with a required field has no default",
            ),
            ("struct A(u32);", "a field of an object needs a name"),
            ("struct A {}", "an object needs fields"),
            (
                "struct A<T> { a: Option<T> }",
                "an object has no parameters",
            ),
            (
                "#[object(nam = \"B\")] struct A { a: Option<u32> }",
                "`nam` is none of: name,",
            ),
            (
                "enum A { B(u32), C }",
                "each variant holds one object, or none holds any",
            ),
            ("union A { a: u32 }", "a union cannot be an object"),
        ] {
            let found = error(declaration);
            assert!(found.contains(message), "{declaration}: {found}");
        }
    }

    #[test]
    fn a_word_is_the_name_of_its_variant_in_snake_case() {
        let input = "enum A { ClientSecretBasic, #[field(rename = \"1.2\")] Tls12 }";
        let made = object(&syn::parse_str(input).unwrap()).unwrap().to_string();
        assert!(
            made.contains("\"client_secret_basic\"") && made.contains("\"1.2\""),
            "{made}"
        );
    }
}
