-- name: tree_sizes
-- params: tables
-- How much room each table and each of its indexes takes. It reads the whole file.
SELECT m.tbl_name, m.name = m.tbl_name, sum(s.pgsize)
FROM dbstat('main', 1) s
JOIN sqlite_master m ON m.name = s.name
WHERE m.tbl_name IN (SELECT value FROM json_each(:tables))
GROUP BY 1, 2
ORDER BY 1;

-- name: file_pages
-- params:
-- How many pages the file has, how many of them are free, how large they are, and where the file is.
SELECT c.page_count, f.freelist_count, s.page_size, d.file
FROM pragma_page_count() c, pragma_freelist_count() f, pragma_page_size() s, pragma_database_list() d
WHERE d.name = 'main';
