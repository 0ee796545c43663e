# fileq completion for bash: eval "$(fileq completion bash)", best in ~/.bashrc
_fileq() {
    local kind="" cur=${COMP_WORDS[COMP_CWORD]}
    { read -r kind; mapfile -t COMPREPLY; } < <(fileq __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    [[ $cur == "=" ]] && cur=""
    case $kind in
        files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
        directories) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
        keys) compopt -o nospace 2>/dev/null ;;
    esac
}
complete -F _fileq fileq
