# fileq completion for fish: fileq completion fish > ~/.config/fish/completions/fileq.fish
function __fileq_complete
    set -l current (commandline -ct)
    set -l lines (fileq __complete fish (commandline -opc)[2..-1] "$current" 2>/dev/null)
    set -l path (string replace -- "$lines[2]" '' "$current")
    switch "$lines[1]"
        case files
            printf "$lines[2]%s\n" (__fish_complete_path "$path")
        case directories
            printf "$lines[2]%s\n" (__fish_complete_directories "$path")
        case words keys
            printf '%s\n' $lines[2..-1]
    end
end
complete -c fileq -f -a '(__fileq_complete)'
