# Starts `fileq serve` with a key that is made at the first start, and kept beside it in a volume.
# A kill leaves no key or a whole one: it is written under another name first.
set -eu
umask 077
key=$FILEQ_SERVER_API_KEY_FILE
if [ ! -s "$key" ]; then
    python -c 'import secrets; print(secrets.token_urlsafe(32))' > "$key.new"
    mv "$key.new" "$key"
    echo "the API key, shown only this once: $(cat "$key")"
fi
exec fileq serve
