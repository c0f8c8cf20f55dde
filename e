pgpt: there is no run to resume in a: No such file or directory; check the path, or leave out --resume
